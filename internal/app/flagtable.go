package app

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/alecthomas/kong"
)

// FlagTable prints the flags of executor serve and reconciler serve as a Markdown table: what README.md shows between its
// markers, so that the document cannot differ from the code.
func FlagTable() string {
	var b strings.Builder
	b.WriteString("| flag | default | environment | |\n| --- | --- | --- | --- |\n")
	shared := flagsOf(&ReconcilerConfig{})
	known := map[string]bool{}
	for _, f := range shared {
		known[f.Name] = true
		row(&b, f)
	}
	b.WriteString("| **executor only** | | | |\n")
	for _, f := range flagsOf(&ExecutorConfig{}) {
		if !known[f.Name] {
			row(&b, f)
		}
	}
	return b.String()
}

func flagsOf(grammar any) []*kong.Flag {
	parser, err := kong.New(grammar, kong.NoDefaultHelp())
	if err != nil {
		panic(fmt.Sprintf("app: the flags of %T are declared wrongly: %v", grammar, err))
	}
	return parser.Model.Flags
}

func row(b *strings.Builder, f *kong.Flag) {
	name := "--" + f.Name
	if f.Target.Kind() != reflect.Bool {
		name += " " + f.PlaceHolder
	}
	value := ""
	if f.HasDefault {
		value = "`" + f.Default + "`"
	}
	cell := strings.NewReplacer("|", `\|`, "<", "&lt;").Replace
	fmt.Fprintf(b, "| `%s` | %s | `%s` | %s |\n", cell(name), cell(value), strings.Join(Variables(f.Name), "`, `"), cell(f.Help))
}
