// Command provider is the quickstart's billing provider: it refuses the first lookup of an invoice and fails the first draft,
// honours idempotency keys, and prints every call that it sees. Its books end with it.
package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/agentrun/executor/internal/demo"
)

func main() {
	address := "127.0.0.1:8099"
	if len(os.Args) > 1 {
		address = os.Args[1]
	}
	provider := demo.NewProvider(demo.Script{RateLimited: 1, DraftErrors: 1})
	server := &http.Server{Addr: address, ReadHeaderTimeout: 5 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		provider.ServeHTTP(w, r)
		calls := provider.Calls()
		last := calls[len(calls)-1]
		fmt.Printf("provider: %s %s: %d, %s\n", last.Method, last.Path, last.Status, last.Said)
	})}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := server.ListenAndServe(); err != http.ErrServerClosed {
		fmt.Fprintln(os.Stderr, "provider:", err)
		os.Exit(1)
	}
}
