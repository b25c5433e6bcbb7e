package ui

import (
	"context"
	"fmt"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// opener is the program that opens a file in the default application of the user.
func opener(file string) (name string, args []string) {
	switch runtime.GOOS {
	case "darwin":
		return "open", []string{file}
	case "windows":
		return "rundll32", []string{"url.dll,FileProtocolHandler", file}
	}
	return "xdg-open", []string{file}
}

// open opens an address in a browser. The address has a token, and other users may read command lines: the browser opens a file that only
// this user can read and that redirects to the address. remove removes the file.
func open(ctx context.Context, address string) (remove func(), err error) {
	dir, err := os.MkdirTemp("", "waymark-ui-")
	if err != nil {
		return func() {}, err
	}
	remove = func() { _ = os.RemoveAll(dir) } // the token was used, or ends with this process
	file := filepath.Join(dir, "open.html")
	page := `<!doctype html><meta name="referrer" content="no-referrer"><meta http-equiv="refresh" content="0; url=` + html.EscapeString(address) + `">`
	if err := os.WriteFile(file, []byte(page), 0o600); err != nil {
		return remove, err
	}
	name, args := opener(file)
	if _, err := exec.LookPath(name); err != nil {
		return remove, fmt.Errorf("there is no %s: open the address above", name)
	}
	command := exec.CommandContext(ctx, name, args...)
	if err := command.Start(); err != nil {
		return remove, err
	}
	go func() { _ = command.Wait() }() // its result does not matter
	return remove, nil
}
