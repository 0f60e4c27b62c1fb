// Command crash kills, pauses and cuts off real executors, reconcilers and a real NATS server at moments that follow from
// a seed, while jobs are published and a provider that is not idempotent keeps its own ledger. At the end the ledger is
// compared with the outcomes and the records. It prints a table, writes a report, and exits with 1 if a promise is broken.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

func main() {
	if code, is := child(os.Args[1:]); is {
		os.Exit(code)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(command(ctx, os.Args[1:]))
}

func command(ctx context.Context, args []string) int {
	flags := flag.NewFlagSet("crash", flag.ContinueOnError)
	opt := Options{Lease: time.Second, Busy: 60, Every: 40 * time.Millisecond, Settle: 90 * time.Second}
	flags.IntVar(&opt.Deaths, "n", 60, "processes to kill")
	flags.Uint64Var(&opt.Seed, "seed", 0, "seed; 0 draws one")
	flags.DurationVar(&opt.Interval, "interval", 110*time.Millisecond, "mean time between two faults")
	flags.IntVar(&opt.Round, "round", 200, "deaths between two breaks in which everything must settle")
	flags.IntVar(&opt.Busy, "busy", opt.Busy, "unfinished runs at once")
	flags.StringVar(&opt.Dir, "dir", "", "directory for stores, journals and logs; a temporary one is removed unless a promise is broken")
	report := flags.String("report", "", "file for the report")
	rounds := flags.Int("rounds", 20, "calm recoveries to time after the faults; 0 leaves the timing out")
	leases := flags.Int("leases", 10000, "expired leases to recover after the faults")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if opt.Seed == 0 {
		opt.Seed = uint64(time.Now().UnixNano())
	}
	if err := test(ctx, opt, *report, *rounds, *leases); err != nil {
		fmt.Fprintln(os.Stderr, "crash:", err)
		return 1
	}
	return 0
}

// test runs the kill test, then the timing, and writes the report.
func test(ctx context.Context, opt Options, report string, rounds, leases int) error {
	temporary := opt.Dir == ""
	if temporary {
		dir, err := os.MkdirTemp("", "agentrun-crash-")
		if err != nil {
			return err
		}
		opt.Dir = dir
	} else if err := os.Mkdir(opt.Dir, 0o700); err != nil {
		return fmt.Errorf("the directory must be new, or old runs would be taken for ours: %w", err)
	}
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	bin, err := build(ctx, root, opt.Dir)
	if err != nil {
		return err
	}
	opt.Progress = progress()
	out, err := crash(ctx, bin, opt)
	if err == nil && rounds > 0 {
		out.Speed, err = measure(ctx, bin, opt.Dir, rounds, leases)
	}
	if err != nil {
		return fmt.Errorf("seed %d, files in %s: %w", opt.Seed, opt.Dir, err)
	}
	fmt.Print("\n" + out.table())
	if report != "" {
		if err := os.WriteFile(filepath.Clean(report), []byte(out.markdown()), 0o644); err != nil {
			return err
		}
	}
	if len(out.Findings) > 0 {
		fmt.Print(out.findings())
		return fmt.Errorf("%d broken promises; seed %d, files in %s", len(out.Findings), opt.Seed, opt.Dir)
	}
	if temporary {
		return os.RemoveAll(opt.Dir)
	}
	return nil
}
