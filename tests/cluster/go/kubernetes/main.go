// Command kubernetes is every Kubernetes program of the embedded test cluster in one static binary.
//
// One program instead of seven halves the build and the disk that it takes. It acts as the command that it is called
// as (a link's name) or, under its own name, as the command that its first argument names.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// commands builds only the command that runs: each registers flags and metrics that the others would collide with.
var commands = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllermanager.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kube-proxy":              proxy.NewProxyCommand,
	// The server package's signal context panics when it is set up twice, and the kubelet sets up its own.
	"kubelet": func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
	"kubectl": func() *cobra.Command { return kubectl.NewDefaultKubectlCommand() },
}

func main() {
	name := filepath.Base(os.Args[0])
	if name == "kubernetes" && len(os.Args) > 1 {
		os.Args = os.Args[1:]
		name = os.Args[0]
	}
	switch name {
	case "etcd":
		etcdmain.Main(os.Args)
		return
	case "device-plugin":
		exitOn(runDevicePlugin(os.Args[1:]))
		return
	}
	build, known := commands[name]
	if !known {
		fmt.Fprintf(os.Stderr, "kubernetes: no command %q in this program\n", name)
		os.Exit(2)
	}
	command := build()
	if name == "kubectl" {
		util.CheckErr(cli.RunNoErrOutput(command))
		return
	}
	os.Exit(cli.Run(command))
}

func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
