package main

import (
	"fmt"
	"io"
	"net"
	"os"
)

// serveForward accepts on a listener that was opened in another network namespace and dials in this one.
//
// A socket keeps the namespace in which it was made, so no address or interface of the host is needed to reach in.
func serveForward(forward Forward) error {
	file := os.NewFile(uintptr(forward.FD), "listener")
	if file == nil {
		return fmt.Errorf("no listener at descriptor %d", forward.FD)
	}
	listener, err := net.FileListener(file)
	if err != nil {
		return fmt.Errorf("listener at descriptor %d: %w", forward.FD, err)
	}
	_ = file.Close()
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			go join(connection, forward.Target)
		}
	}()
	return nil
}

// join copies both ways; between two TCP connections io.Copy uses splice(2), so that the bytes stay in the kernel.
func join(client net.Conn, target string) {
	defer client.Close()
	server, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer server.Close()
	done := make(chan struct{})
	go func() {
		copyHalf(server, client)
		close(done)
	}()
	copyHalf(client, server)
	<-done
}

func copyHalf(to, from net.Conn) {
	_, _ = io.Copy(to, from)
	if half, ok := to.(*net.TCPConn); ok {
		_ = half.CloseWrite()
	}
	if half, ok := from.(*net.TCPConn); ok {
		_ = half.CloseRead()
	}
}
