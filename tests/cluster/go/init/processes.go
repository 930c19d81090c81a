package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
)

// processTable knows the children. One loop waits for all of them, since orphans of others end up here as well.
type processTable struct {
	mutex    sync.Mutex
	children map[int]chan syscall.WaitStatus
	starts   chan startRequest
}

type startRequest struct {
	argv   []string
	attr   *os.ProcAttr
	answer chan startAnswer
}

type startAnswer struct {
	pid   int
	ended chan syscall.WaitStatus
	err   error
}

func newProcessTable() *processTable {
	table := &processTable{children: map[int]chan syscall.WaitStatus{}, starts: make(chan startRequest)}
	go table.serveStarts()
	return table
}

// serveStarts forks on one thread that lives as long as init: a child's parent-death signal watches a thread.
func (table *processTable) serveStarts() {
	runtime.LockOSThread()
	for request := range table.starts {
		request.answer <- table.fork(request)
	}
}

func (table *processTable) fork(request startRequest) startAnswer {
	path, err := exec.LookPath(request.argv[0])
	if err != nil {
		return startAnswer{err: err}
	}
	// Held until the child is listed, or the reaper could meet a child that it doesn't know yet.
	table.mutex.Lock()
	defer table.mutex.Unlock()
	process, err := os.StartProcess(path, request.argv, request.attr)
	if err != nil {
		return startAnswer{err: fmt.Errorf("%s: %w", path, err)}
	}
	ended := make(chan syscall.WaitStatus, 1)
	table.children[process.Pid] = ended
	answer := startAnswer{pid: process.Pid, ended: ended}
	_ = process.Release()
	return answer
}

func (table *processTable) start(argv, env []string, output *os.File, cloneFlags uintptr) startAnswer {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return startAnswer{err: err}
	}
	defer null.Close()
	request := startRequest{
		argv:   argv,
		answer: make(chan startAnswer, 1),
		attr: &os.ProcAttr{
			Env:   append(os.Environ(), env...),
			Files: []*os.File{null, output, output},
			Sys:   &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL, Cloneflags: cloneFlags},
		},
	}
	table.starts <- request
	return <-request.answer
}

func (table *processTable) runToEnd(argv []string, output *os.File) error {
	started := table.start(argv, nil, output, 0)
	if started.err != nil {
		return started.err
	}
	if status := <-started.ended; status != 0 {
		return fmt.Errorf("%v: %s", argv, describe(status))
	}
	return nil
}

func (table *processTable) reap() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGCHLD)
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		if pid <= 0 {
			<-signals
			continue
		}
		table.mutex.Lock()
		ended := table.children[pid]
		delete(table.children, pid)
		table.mutex.Unlock()
		if ended != nil {
			ended <- status
		}
	}
}

func describe(status syscall.WaitStatus) string {
	if status.Signaled() {
		return "ended by signal " + status.Signal().String()
	}
	return fmt.Sprintf("exit status %d", status.ExitStatus())
}
