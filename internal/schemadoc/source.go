package schemadoc

import (
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

// sources is what reflection cannot see: comments, and the values of typed string constants. Keys are "package.Type" and
// "package.Type.Field".
type sources struct {
	types  map[string]string
	fields map[string]string
	values map[string][]any
}

// readSources reads the packages in these directories below root, tests left out.
func readSources(root string, dirs ...string) (*sources, error) {
	s := &sources{types: map[string]string{}, fields: map[string]string{}, values: map[string][]any{}}
	for _, dir := range dirs {
		names, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(dir), "*.go"))
		if err != nil {
			return nil, err
		}
		if len(names) == 0 {
			return nil, fmt.Errorf("no Go files in %s: %w", dir, os.ErrNotExist)
		}
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
			if err != nil {
				return nil, err
			}
			for _, d := range f.Decls {
				if g, ok := d.(*ast.GenDecl); ok {
					s.declaration(path.Base(dir), g)
				}
			}
		}
	}
	return s, nil
}

func (s *sources) declaration(pkg string, g *ast.GenDecl) {
	for _, spec := range g.Specs {
		switch spec := spec.(type) {
		case *ast.TypeSpec:
			comment := spec.Doc
			if comment == nil {
				comment = g.Doc
			}
			key := pkg + "." + spec.Name.Name
			s.types[key] = new(doc.Package).Synopsis(comment.Text())
			if st, ok := spec.Type.(*ast.StructType); ok {
				s.structFields(key, st)
			}
		case *ast.ValueSpec:
			s.constants(pkg, g.Tok, spec)
		}
	}
}

func (s *sources) structFields(key string, st *ast.StructType) {
	for _, f := range st.Fields.List {
		text := f.Doc.Text()
		if text == "" {
			text = f.Comment.Text()
		}
		for _, name := range f.Names {
			s.fields[key+"."+name.Name] = strings.Join(strings.Fields(text), " ")
		}
	}
}

// constants collects the values of a typed string: each constant must name its type. The empty string stands for "none"
// and is never on the wire.
func (s *sources) constants(pkg string, tok token.Token, spec *ast.ValueSpec) {
	t, ok := spec.Type.(*ast.Ident)
	if tok != token.CONST || !ok {
		return
	}
	for _, v := range spec.Values {
		if lit, ok := v.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if text, err := strconv.Unquote(lit.Value); err == nil && text != "" {
				key := pkg + "." + t.Name
				s.values[key] = append(s.values[key], text)
			}
		}
	}
}
