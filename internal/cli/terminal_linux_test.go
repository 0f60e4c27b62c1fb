package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentrun/executor/internal/app"
	"github.com/agentrun/executor/internal/bus/bustest"
)

// onTerminal runs a command whose standard output is a terminal, and returns what that shows.
func onTerminal(t *testing.T, stdin string, args ...string) (code int, shown string) {
	t.Helper()
	ours, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	n, err := unix.IoctlGetInt(int(ours.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(ours.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	terminal, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	all := make(chan string)
	go func() {
		data, _ := io.ReadAll(ours) // ends with an error when the other side is closed
		all <- string(data)
	}()
	none := func(string) (string, bool) { return "", false }
	code = Run(t.Context(), args, app.Env{Lookup: none, Stdin: strings.NewReader(stdin), Stdout: terminal, Stderr: io.Discard})
	if err := terminal.Close(); err != nil {
		t.Fatal(err)
	}
	return code, <-all
}

// On a terminal a person reads, unless a program is to read it there.
func TestSubmitOnATerminal(t *testing.T) {
	t.Parallel()
	f := standIn(t, bustest.Start(t).URL)
	f.answer("r", step("a", "ok", ""), end("ok"))
	code, people := onTerminal(t, jobJSON("r", false, "a"), "submit", "--wait", "--nats", f.url)
	if code != 0 || strings.Contains(people, `{"`) || !strings.Contains(people, "run r") || !strings.Contains(people, "ok") {
		t.Errorf("exit code %d, for people:\n%s", code, people)
	}
	f.answer("s", step("a", "ok", ""), end("ok"))
	code, shown := onTerminal(t, jobJSON("s", false, "a"), "submit", "--wait", "--json", "--nats", f.url)
	if code != 0 || strings.Contains(shown, "\x1b") || lines(t, strings.ReplaceAll(shown, "\r\n", "\n")) != "a:ok RUN:ok" {
		t.Errorf("exit code %d, for programs:\n%s", code, shown)
	}
}
