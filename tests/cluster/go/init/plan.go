package main

import (
	"encoding/json"
	"fmt"
	"os"
)

// Plan is what one init supervises. The Python side writes it (plan.py): keep the two alike.
type Plan struct {
	Setup        []string  `json:"setup"`          // Run to its end before anything else; a failure ends init.
	Control      string    `json:"control"`        // Unix socket that takes orders; none if empty.
	EndWithStdin bool      `json:"end_with_stdin"` // End when the other end of standard input closes.
	Forwards     []Forward `json:"forwards"`
	Services     []Service `json:"services"`
}

// Forward hands each connection to an inherited listener on to a target in this network namespace.
type Forward struct {
	FD     int    `json:"fd"`
	Target string `json:"target"`
}

// Service is one supervised process.
type Service struct {
	Name       string   `json:"name"`
	Argv       []string `json:"argv"`
	Env        []string `json:"env"` // Added to init's own environment.
	Log        string   `json:"log"`
	WaitFor    []string `json:"wait_for"`    // Each one of unix:PATH, tcp:HOST:PORT, file:PATH.
	Once       bool     `json:"once"`        // Not started again after it ended well.
	Isolated   bool     `json:"isolated"`    // Own PID, mount, network, IPC and UTS namespaces; stopped by SIGKILL.
	Before     []string `json:"before"`      // Run to its end before each start.
	AfterStart []string `json:"after_start"` // Run after each start; the process id is added as the last argument.
	AfterStop  []string `json:"after_stop"`  // Run to its end after each end.
}

func readPlan(path string) (*Plan, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	plan := &Plan{}
	if err := json.Unmarshal(content, plan); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return plan, nil
}
