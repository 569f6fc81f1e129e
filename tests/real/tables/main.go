// Command tables runs the unit tests of the pinned Kubernetes module with the functions under test
// recorded, and writes what each call got and what it answered as JSON lines, one file a group:
//
//	go run ./tables -out DIR [GROUP ...]
//
// Nothing of Kubernetes is changed: `go test -overlay` compiles instrumented copies of single files
// that live in a temporary folder for as long as the tests run. A group that is there already is left
// alone, so a second run costs nothing.
package main

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
)

func main() {
	out := flag.String("out", "", "folder that gets GROUP.jsonl.gz")
	goCommand := flag.String("go", "go", "the go command")
	flag.Parse()
	wanted := flag.Args()
	if len(wanted) == 0 {
		for name := range groups {
			wanted = append(wanted, name)
		}
		sort.Slice(wanted, func(i, j int) bool { return groups[wanted[i]].Order < groups[wanted[j]].Order })
	}
	failed := 0
	for _, name := range wanted {
		target := filepath.Join(*out, name+".jsonl.gz")
		if _, err := os.Stat(target); err == nil {
			continue
		}
		fmt.Printf("real: recording the unit tests of Kubernetes: %s\n", name)
		if err := record(*goCommand, name, target); err != nil {
			fmt.Fprintf(os.Stderr, "real: CANNOT RECORD %s: its tests will be SKIPPED: %v\n", name, err)
			failed++
		}
	}
	if failed > 0 {
		os.Exit(1)
	}
}

// record runs the tests of one group and writes its file, which appears only when it is whole.
func record(goCommand, name, target string) error {
	group := groups[name]
	scratch, err := os.MkdirTemp("", "keepclose-tables-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	modules, err := relocate(goCommand, group, scratch)
	if err != nil {
		return err
	}
	overlay := map[string]string{}
	for _, pkg := range group.Packages {
		if err := instrument(goCommand, modules, pkg, scratch, overlay); err != nil {
			return fmt.Errorf("%s: %w", pkg.Path, err)
		}
	}
	description, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		return err
	}
	overlayFile := filepath.Join(scratch, "overlay.json")
	if err := os.WriteFile(overlayFile, description, 0o600); err != nil {
		return err
	}
	recording := filepath.Join(scratch, "recording.jsonl")
	// The flags are those of the components, so that both share what is compiled.
	arguments := []string{"test", modules, "-mod=readonly", "-trimpath", "-vet=off", "-count=1", "-p=1", "-overlay", overlayFile}
	if group.Run != "" {
		arguments = append(arguments, "-run", group.Run)
	}
	for _, pkg := range group.Packages {
		if !pkg.Untested {
			arguments = append(arguments, pkg.Path)
		}
	}
	command := exec.Command(goCommand, arguments...)
	command.Env = append(os.Environ(), "CGO_ENABLED=0", "KEEPCLOSE_RECORDING="+recording)
	log, err := os.Create(target + ".log")
	if err != nil {
		return err
	}
	defer log.Close()
	command.Stdout, command.Stderr = log, log
	if err := command.Run(); err != nil {
		return fmt.Errorf("%w (see %s)", err, log.Name())
	}
	if err := compress(recording, target+".new"); err != nil {
		return err
	}
	os.Remove(log.Name())
	return os.Rename(target+".new", target)
}

// relocate makes the modules of the recorded packages reachable outside the module cache, beneath
// which Go allows no overlay, and returns the flag with the go.mod that says so.
func relocate(goCommand string, group Group, scratch string) (string, error) {
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(name)
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(scratch, name), text, 0o600); err != nil {
			return "", err
		}
	}
	file := filepath.Join(scratch, "go.mod")
	for _, pkg := range group.Packages {
		output, err := exec.Command(goCommand, "list", "-mod=readonly", "-f", "{{.Module.Path}} {{.Module.Dir}}", pkg.Path).Output()
		if err != nil {
			return "", fmt.Errorf("%s: %w", pkg.Path, err)
		}
		var module, folder string
		if _, err := fmt.Sscan(string(output), &module, &folder); err != nil {
			return "", err
		}
		link := filepath.Join(scratch, "module-"+filepath.Base(module))
		if err := os.Symlink(folder, link); err != nil && !os.IsExist(err) {
			return "", err
		}
		if err := exec.Command(goCommand, "mod", "edit", "-replace="+module+"="+link, file).Run(); err != nil {
			return "", err
		}
	}
	return "-modfile=" + file, nil
}

func compress(source, target string) error {
	reader, err := os.Open(source)
	if err != nil {
		return err
	}
	defer reader.Close()
	file, err := os.Create(target)
	if err != nil {
		return err
	}
	defer file.Close()
	writer := gzip.NewWriter(file)
	if _, err := io.Copy(writer, bufio.NewReader(reader)); err != nil {
		return err
	}
	return writer.Close()
}
