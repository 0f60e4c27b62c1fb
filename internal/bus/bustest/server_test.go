package bustest_test

import (
	"errors"
	"fmt"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentrun/executor/internal/bus/bustest"
)

// A port is the test's while nothing listens on it: nobody else gets it, and whoever names it may listen, time and again.
func TestPort(t *testing.T) {
	port := bustest.Port(t)
	addr := fmt.Sprintf("127.0.0.1:%d", port)
	for range 2 {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		_ = l.Close()
		if c, err := net.Dial("tcp", addr); err == nil {
			_ = c.Close()
			t.Error("somebody listens")
		}
	}
	// The kernel gives no port to who asks for any that it would not give to who names it and shares with nobody.
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Bind(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("another has bound it: %v", err)
	}
}
