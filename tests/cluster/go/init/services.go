package main

import (
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	restartDelay = time.Second
	pollInterval = 20 * time.Millisecond
	stopGrace    = 3 * time.Second
	isolation    = syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS |
		syscall.CLONE_NEWIPC
)

// service is one supervised process and whether it is wanted.
type service struct {
	spec   Service
	table  *processTable
	orders sync.Mutex // One order at a time.
	mutex  sync.Mutex // Guards what follows.
	quit   chan struct{}
	done   chan struct{}
	pid    int
	starts int
}

type services struct {
	order  []*service
	byName map[string]*service
}

func newServices(specs []Service, table *processTable) *services {
	all := &services{byName: map[string]*service{}}
	for _, spec := range specs {
		one := &service{spec: spec, table: table}
		all.order = append(all.order, one)
		all.byName[spec.Name] = one
	}
	return all
}

func (all *services) startAll() {
	for _, one := range all.order {
		one.start()
	}
}

// stopAll stops in the reverse order of the plan, so that a server outlives its clients.
func (all *services) stopAll() {
	for index := len(all.order) - 1; index >= 0; index-- {
		all.order[index].stop()
	}
}

func (one *service) start() {
	one.orders.Lock()
	defer one.orders.Unlock()
	one.mutex.Lock()
	defer one.mutex.Unlock()
	if one.quit != nil {
		return
	}
	one.quit, one.done = make(chan struct{}), make(chan struct{})
	go one.keepRunning(one.quit, one.done)
}

func (one *service) stop() {
	one.orders.Lock()
	defer one.orders.Unlock()
	one.mutex.Lock()
	quit, done := one.quit, one.done
	one.quit, one.done = nil, nil
	one.mutex.Unlock()
	if quit == nil {
		return
	}
	close(quit)
	<-done
}

func (one *service) keepRunning(quit, done chan struct{}) {
	defer close(done)
	for {
		if !one.waitForConditions(quit) {
			return
		}
		err := one.runOnce(quit)
		if err == nil && one.spec.Once {
			<-quit
			return
		}
		select {
		case <-quit:
			return
		case <-time.After(restartDelay):
			fmt.Fprintf(os.Stderr, "init: %s ended (%v), starting it again\n", one.spec.Name, err)
		}
	}
}

// runOnce starts the process and returns when it has ended; nil means a clean exit.
func (one *service) runOnce(quit chan struct{}) error {
	output, err := os.OpenFile(one.spec.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer output.Close()
	if len(one.spec.Before) > 0 {
		if err := one.table.runToEnd(one.spec.Before, output); err != nil {
			return err
		}
	}
	err = one.supervise(output, quit)
	if len(one.spec.AfterStop) > 0 {
		if failure := one.table.runToEnd(one.spec.AfterStop, output); failure != nil {
			return failure
		}
	}
	return err
}

func (one *service) supervise(output *os.File, quit chan struct{}) error {
	var cloneFlags uintptr
	if one.spec.Isolated {
		cloneFlags = isolation
	}
	started := one.table.start(one.spec.Argv, one.spec.Env, output, cloneFlags)
	if started.err != nil {
		return started.err
	}
	one.setPID(started.pid)
	defer one.setPID(0)
	if len(one.spec.AfterStart) > 0 {
		argv := append(append([]string{}, one.spec.AfterStart...), fmt.Sprint(started.pid))
		if err := one.table.runToEnd(argv, output); err != nil {
			fmt.Fprintf(output, "init: %v\n", err)
			_ = syscall.Kill(started.pid, syscall.SIGKILL)
		}
	}
	select {
	case status := <-started.ended:
		return asError(status)
	case <-quit:
		return asError(one.end(started))
	}
}

// end stops the process. An isolated one is a node that loses its power: the kernel ends all in its PID namespace.
func (one *service) end(started startAnswer) syscall.WaitStatus {
	first := syscall.SIGTERM
	if one.spec.Isolated {
		first = syscall.SIGKILL
	}
	_ = syscall.Kill(started.pid, first)
	select {
	case status := <-started.ended:
		return status
	case <-time.After(stopGrace):
		_ = syscall.Kill(started.pid, syscall.SIGKILL)
		return <-started.ended
	}
}

func (one *service) setPID(pid int) {
	one.mutex.Lock()
	defer one.mutex.Unlock()
	one.pid = pid
	if pid != 0 {
		one.starts++
	}
}

func (one *service) waitForConditions(quit chan struct{}) bool {
	for _, condition := range one.spec.WaitFor {
		for !holds(condition) {
			select {
			case <-quit:
				return false
			case <-time.After(pollInterval):
			}
		}
	}
	return true
}

func holds(condition string) bool {
	kind, target, _ := strings.Cut(condition, ":")
	if kind == "file" {
		_, err := os.Stat(target)
		return err == nil
	}
	connection, err := net.DialTimeout(kind, target, time.Second)
	if err != nil {
		return false
	}
	_ = connection.Close()
	return true
}

func asError(status syscall.WaitStatus) error {
	if status == 0 {
		return nil
	}
	return fmt.Errorf("%s", describe(status))
}
