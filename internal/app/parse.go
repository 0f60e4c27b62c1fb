package app

import (
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"strings"
	"sync"

	"github.com/alecthomas/kong"
)

// Exit codes of the commands (contract §11). Those of submit --wait are beside it.
const (
	ExitOK     = 0
	ExitFailed = 1
	ExitUsage  = 2
)

// Usage is bad usage of a command: one line that names the flag. The process ends with ExitUsage, or what the command
// has instead.
type Usage struct {
	Command string // e.g. "executor serve"
	Err     error
}

func (u *Usage) Error() string {
	return fmt.Sprintf("%s: %v (see %s --help)", u.Command, u.Err, u.Command)
}

func (u *Usage) Unwrap() error { return u.Err }

// errDone is what Parse returns when --help or --version has answered already.
var errDone = errors.New("nothing is left to do")

// Done reports whether Parse's error means that the command has answered already.
func Done(err error) bool { return errors.Is(err, errDone) }

type exited int

// Parse fills grammar, a pointer to a struct of commands, from args, then from the environment, then from defaults. The
// environment variable of --some-flag is AGENTRUN_SOME_FLAG, for the flags that have one (Variables). It returns the command's path,
// e.g. "serve" or "journal ls". The error is a *Usage, or one that Done knows.
func Parse(name, about string, grammar any, args []string, env Env) (command string, err error) {
	source := map[string]string{}
	parser, err := kong.New(grammar, kong.Name(name), kong.Description(about),
		kong.Writers(env.Stdout, env.Stderr), kong.Vars{"version": Version(name)},
		kong.Exit(func(code int) { panic(exited(code)) }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true}),
		kong.Resolvers(fromEnvironment(env.Getenv, source)),
		kong.PostBuild(func(k *kong.Kong) error { explain(k.Model.Node); return nil }),
	)
	if err != nil {
		panic(fmt.Sprintf("app: the flags of %s are declared wrongly: %v", name, err))
	}
	if len(args) == 1 && args[0] == "version" {
		args = []string{"--version"}
	}
	defer func() {
		switch p := recover().(type) {
		case nil:
		case exited:
			command, err = "", errDone
		default:
			panic(p)
		}
	}()
	ctx, err := parser.Parse(args)
	if err != nil {
		command := name
		var parse *kong.ParseError
		if errors.As(err, &parse) && parse.Context != nil && parse.Context.Selected() != nil {
			command += " " + path(parse.Context.Selected())
			err = errors.Unwrap(parse)
		}
		text := oneLine(err.Error())
		if flag, _, ok := strings.Cut(text, ":"); ok && source[flag] != "" {
			text += ", from $" + source[flag]
		}
		return "", &Usage{Command: command, Err: errors.New(text)}
	}
	return path(ctx.Selected()), nil
}

// path is a command's name without its arguments.
func path(n *kong.Node) string {
	if n == nil || n.Type == kong.ApplicationNode {
		return ""
	}
	return strings.TrimSpace(path(n.Parent) + " " + n.Name)
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// Variables are the environment variables of a flag, the first that is set wins. Only what says where a process lives and
// how it is run has any: the flags of serve, in whatever command they appear. What confirms, chooses or changes something
// is said by whoever types the command, never by what a shell happens to export.
func Variables(flag string) []string {
	if !settings()[flag] {
		return nil
	}
	names := []string{"AGENTRUN_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))}
	if flag == "nats" {
		names = append(names, "NATS_URL")
	}
	return names
}

// settings are the names of serve's flags.
var settings = sync.OnceValue(func() map[string]bool {
	names := map[string]bool{}
	for _, grammar := range []any{&ExecutorConfig{}, &ReconcilerConfig{}} {
		for _, f := range flagsOf(grammar) {
			names[f.Name] = true
		}
	}
	return names
})

// fromEnvironment reads variables through getenv, so that tests have an environment of their own. An empty variable is
// an unset one. source notes which variable a flag was taken from.
func fromEnvironment(getenv func(string) string, source map[string]string) kong.Resolver {
	return kong.ResolverFunc(func(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
		for _, name := range Variables(flag.Name) {
			if v := getenv(name); v != "" {
				source["--"+flag.Name] = name
				return v, nil
			}
		}
		return nil, nil
	})
}

// explain adds each flag's default and environment variables to its help.
func explain(n *kong.Node) {
	for _, f := range n.Flags {
		if f.HasDefault {
			f.Help += " Default: " + f.Default + "."
		}
		if names := Variables(f.Name); len(names) > 0 {
			f.Help += " [$" + strings.Join(names, ", $") + "]"
		}
	}
	for _, child := range n.Children {
		explain(child)
	}
}

// modulePath is this module's. A program with tools of its own is another's, and holds this one.
const modulePath = "github.com/agentrun/executor"

// Version is the line that --version and version print: the version of this module, and the commit if the program is built
// from it.
func Version(name string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return name + " (unknown version)"
	}
	return versionLine(name, info)
}

func versionLine(name string, info *debug.BuildInfo) string {
	version, commit, dirty := info.Main.Version, "", ""
	if info.Main.Path != modulePath {
		for _, m := range info.Deps {
			if m.Path != modulePath {
				continue
			}
			if version = m.Version; m.Replace != nil {
				version = m.Replace.Version
			}
		}
	} else {
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision":
				commit = s.Value[:min(12, len(s.Value))]
			case s.Key == "vcs.modified" && s.Value == "true":
				dirty = "+changes"
			}
		}
	}
	if version == "" || version == "(devel)" {
		version = "devel"
	}
	if commit != "" {
		return fmt.Sprintf("%s %s (%s%s, %s)", name, version, commit, dirty, info.GoVersion)
	}
	return fmt.Sprintf("%s %s (%s)", name, version, info.GoVersion)
}

// Defaults fills a process's flags (a pointer to ExecutorConfig or ReconcilerConfig) from args and defaults alone, no
// environment, and completes them: for processes that are started inside another.
func Defaults(flags interface{ Complete() error }, args []string) error {
	if err := Fill(flags, args); err != nil {
		return err
	}
	return flags.Complete()
}

// Fill is Defaults for a caller that changes the flags before it completes them.
func Fill(flags any, args []string) error {
	none := Env{Lookup: func(string) (string, bool) { return "", false }, Stdout: io.Discard, Stderr: io.Discard}
	_, err := Parse("serve", "", flags, args, none)
	return err
}
