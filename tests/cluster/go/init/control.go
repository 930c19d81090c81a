package main

import (
	"bufio"
	"encoding/json"
	"net"
	"os"
	"strings"
)

// answer is one line of JSON: the state of every service, or what was wrong with the order.
type answer struct {
	Error    string                  `json:"error,omitempty"`
	Services map[string]serviceState `json:"services,omitempty"`
}

type serviceState struct {
	Wanted bool `json:"wanted"`
	PID    int  `json:"pid"` // In init's PID namespace; 0 when it isn't running.
	Starts int  `json:"starts"`
}

// serveControl takes one order per connection: "status", "start NAME" or "stop NAME".
func serveControl(path string, all *services) error {
	_ = os.Remove(path)
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return err
	}
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer connection.Close()
				line, _ := bufio.NewReader(connection).ReadString('\n')
				_ = json.NewEncoder(connection).Encode(obey(strings.Fields(line), all))
			}()
		}
	}()
	return nil
}

func obey(order []string, all *services) answer {
	switch {
	case len(order) == 1 && order[0] == "status":
		return answer{Services: all.states()}
	case len(order) == 2 && (order[0] == "start" || order[0] == "stop"):
		one, known := all.byName[order[1]]
		if !known {
			return answer{Error: "no service " + order[1]}
		}
		if order[0] == "start" {
			one.start()
		} else {
			one.stop()
		}
		return answer{Services: all.states()}
	}
	return answer{Error: "unknown order " + strings.Join(order, " ")}
}

func (all *services) states() map[string]serviceState {
	states := map[string]serviceState{}
	for _, one := range all.order {
		one.mutex.Lock()
		states[one.spec.Name] = serviceState{Wanted: one.quit != nil, PID: one.pid, Starts: one.starts}
		one.mutex.Unlock()
	}
	return states
}
