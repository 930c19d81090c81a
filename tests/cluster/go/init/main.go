// Command init supervises the processes of an embedded cluster, of one of its nodes, or of a lone API server.
//
// It reads a plan (JSON, see plan.go), runs the plan's set-up, starts the services and keeps them running, reaps
// orphans (it is the first process of a PID namespace), forwards connections from listeners that it inherited into
// its own network namespace, and takes orders on a Unix socket. It ends when told to; what it started ends with it.
package main

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: init PLAN.json")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "init:", err)
		os.Exit(1)
	}
}

func run(path string) error {
	plan, err := readPlan(path)
	if err != nil {
		return err
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	processes := newProcessTable()
	go processes.reap()
	if len(plan.Setup) > 0 {
		if err := processes.runToEnd(plan.Setup, os.Stderr); err != nil {
			return fmt.Errorf("set-up: %w", err)
		}
		// The set-up may have changed the root, and with it taken the folder away that init was started in.
		if plan.Control == "" {
			if err := os.Chdir("/"); err != nil {
				return err
			}
		}
	}
	services := newServices(plan.Services, processes)
	for _, forward := range plan.Forwards {
		if err := serveForward(forward); err != nil {
			return err
		}
	}
	if plan.Control != "" {
		if err := serveControl(plan.Control, services); err != nil {
			return err
		}
	}
	services.startAll()
	ended := make(chan struct{})
	if plan.EndWithStdin {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			close(ended)
		}()
	}
	select {
	case <-signals:
	case <-ended:
	}
	services.stopAll()
	return nil
}
