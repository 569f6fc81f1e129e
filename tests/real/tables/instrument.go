package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
)

//go:embed recorder.go.txt
var recorderSource string

//go:embed conversion.go.txt
var conversionSource string

// edit is text to put in place of a part of a file.
type edit struct {
	from, to int
	text     string
}

// instrument puts copies of the files of one package into the overlay, in which the wanted functions
// are renamed and wrapped, and every test says its name.
func instrument(goCommand, modules string, pkg Package, scratch string, overlay map[string]string) error {
	output, err := exec.Command(goCommand, "list", modules, "-mod=readonly", "-json=Dir,Name,GoFiles,TestGoFiles", pkg.Path).Output()
	if err != nil {
		return err
	}
	var listed struct {
		Dir, Name            string
		GoFiles, TestGoFiles []string
	}
	if err := json.Unmarshal(output, &listed); err != nil {
		return err
	}
	folder := filepath.Join(scratch, strings.ReplaceAll(pkg.Path, "/", "_"))
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	place := func(name, text string) error {
		file := filepath.Join(folder, name)
		overlay[filepath.Join(listed.Dir, name)] = file
		return os.WriteFile(file, []byte(text), 0o600)
	}
	missing := map[string]Function{}
	for _, function := range pkg.Functions {
		missing[function.Name] = function
	}
	for _, name := range append(listed.GoFiles, listed.TestGoFiles...) {
		source, err := os.ReadFile(filepath.Join(listed.Dir, name))
		if err != nil {
			return err
		}
		changed, err := rewrite(name, source, missing)
		if err != nil {
			return err
		}
		if changed == "" {
			continue
		}
		if err := place(name, changed); err != nil {
			return err
		}
	}
	if len(missing) > 0 {
		names := []string{}
		for name := range missing {
			names = append(names, name)
		}
		sort.Strings(names)
		return fmt.Errorf("no such functions any more: %s", strings.Join(names, ", "))
	}
	head := "package " + listed.Name + "\n"
	if pkg.Extra != "" {
		if err := place("zz_keepclose_extra.go", head+pkg.Extra); err != nil {
			return err
		}
	}
	if pkg.ConvertsInternal {
		if err := place("zz_keepclose_conversion_test.go", head+conversionSource); err != nil {
			return err
		}
	}
	return place("zz_keepclose_recorder.go", head+recorderSource)
}

// rewrite returns the file with its wanted functions wrapped and its tests named, or "" when there
// is nothing to change. What it wraps it takes off the wanted ones.
func rewrite(name string, source []byte, wanted map[string]Function) (string, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, source, 0)
	if err != nil {
		return "", err
	}
	offset := func(position token.Pos) int { return files.Position(position).Offset }
	var edits []edit
	var wrappers strings.Builder
	for _, declaration := range file.Decls {
		function, ok := declaration.(*ast.FuncDecl)
		if !ok {
			continue
		}
		key := function.Name.Name
		if function.Recv != nil {
			key = baseName(function.Recv.List[0].Type) + "." + key
		}
		if target, ok := wanted[key]; ok {
			delete(wanted, key)
			edits = append(edits, edit{offset(function.Name.Pos()), offset(function.Name.End()), "recorded_" + function.Name.Name})
			wrappers.WriteString(wrapper(files, function, target))
		}
	}
	if strings.HasSuffix(name, "_test.go") {
		ast.Inspect(file, func(node ast.Node) bool {
			var signature *ast.FuncType
			var body *ast.BlockStmt
			switch function := node.(type) {
			case *ast.FuncDecl:
				signature, body = function.Type, function.Body
			case *ast.FuncLit:
				signature, body = function.Type, function.Body
			}
			if parameter := testParameter(signature); parameter != "" && body != nil {
				at := offset(body.Lbrace) + 1
				edits = append(edits, edit{at, at, " keepcloseTest(" + parameter + ".Name());"})
			}
			return true
		})
	}
	if len(edits) == 0 {
		return "", nil
	}
	sort.Slice(edits, func(i, j int) bool { return edits[i].from > edits[j].from })
	text := string(source)
	for _, change := range edits {
		text = text[:change.from] + change.text + text[change.to:]
	}
	return text + wrappers.String(), nil
}

// testParameter returns the name of the parameter of type *testing.T, "" without one.
func testParameter(signature *ast.FuncType) string {
	if signature == nil || signature.Params == nil {
		return ""
	}
	for _, field := range signature.Params.List {
		star, ok := field.Type.(*ast.StarExpr)
		if !ok {
			continue
		}
		selector, ok := star.X.(*ast.SelectorExpr)
		if !ok || selector.Sel.Name != "T" || len(field.Names) != 1 || field.Names[0].Name == "_" {
			continue
		}
		if of, ok := selector.X.(*ast.Ident); ok && of.Name == "testing" {
			return field.Names[0].Name
		}
	}
	return ""
}

func baseName(receiver ast.Expr) string {
	if star, ok := receiver.(*ast.StarExpr); ok {
		receiver = star.X
	}
	if name, ok := receiver.(*ast.Ident); ok {
		return name.Name
	}
	return ""
}

// wrapper returns a function of the old name that records a call of the renamed one.
func wrapper(files *token.FileSet, function *ast.FuncDecl, target Function) string {
	render := func(node ast.Node) string {
		var text bytes.Buffer
		printer.Fprint(&text, files, node)
		return text.String()
	}
	var parameters, arguments, results, resultNames []string
	inputs := map[string]string{}
	list := func(fields *ast.FieldList, prefix string, each func(name, kind string)) {
		if fields == nil {
			return
		}
		count := 0
		for _, field := range fields.List {
			names := field.Names
			if len(names) == 0 {
				names = []*ast.Ident{{Name: "_"}}
			}
			for _, name := range names {
				text := name.Name
				if text == "_" {
					text = fmt.Sprintf("%s%d", prefix, count)
				}
				each(text, render(field.Type))
				count++
			}
		}
	}
	list(function.Type.Params, "parameter", func(name, kind string) {
		parameters = append(parameters, name+" "+kind)
		if strings.HasPrefix(kind, "...") {
			arguments = append(arguments, name+"...")
		} else {
			arguments = append(arguments, name)
		}
		if !isPlumbing(kind) {
			inputs[name] = name
		}
	})
	outputs := map[string]string{}
	list(function.Type.Results, "result", func(name, kind string) {
		results = append(results, name+" "+kind)
		resultNames = append(resultNames, name)
		outputs[name] = name
	})
	receiver, call := "", "recorded_"+function.Name.Name
	if function.Recv != nil {
		field := function.Recv.List[0]
		of := "receiver"
		if len(field.Names) == 1 && field.Names[0].Name != "_" {
			of = field.Names[0].Name
		}
		receiver = "(" + of + " " + render(field.Type) + ") "
		call = of + "." + call
	}
	if target.Before != nil {
		inputs = target.Before
	}
	for name, expression := range target.After {
		outputs[name] = expression
	}
	assign := ""
	if len(resultNames) > 0 {
		assign = strings.Join(resultNames, ", ") + " = "
	}
	return fmt.Sprintf(`

func %s%s(%s) (%s) {
	keepcloseCall := keepcloseBegin(%q, %t, map[string]any{%s})
	%s%s(%s)
	keepcloseCall.end(map[string]any{%s})
	return
}
`, receiver, function.Name.Name, strings.Join(parameters, ", "), strings.Join(results, ", "),
		target.Name, target.Outermost, pairs(inputs), assign, call, strings.Join(arguments, ", "), pairs(outputs))
}

// isPlumbing says whether a parameter carries nothing that decides.
func isPlumbing(kind string) bool {
	switch kind {
	case "klog.Logger", "context.Context", "*testing.T":
		return true
	}
	return false
}

func pairs(expressions map[string]string) string {
	names := []string{}
	for name := range expressions {
		names = append(names, name)
	}
	sort.Strings(names)
	var text strings.Builder
	for _, name := range names {
		fmt.Fprintf(&text, "%q: %s, ", name, expressions[name])
	}
	return text.String()
}
