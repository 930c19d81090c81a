package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	plugin "k8s.io/kubernetes/pkg/kubelet/cm/devicemanager/plugin/v1beta1"
)

// runDevicePlugin reports devices that do not exist to the kubelet, as a GPU vendor's plugin reports real ones.
//
// A patch of the node's status would do too, but the kubelet resets it when it starts again. The kubelet also empties
// the socket folder then; the plugin ends when its socket is gone, and who started it starts it anew.
func runDevicePlugin(arguments []string) error {
	flags := flag.NewFlagSet("device-plugin", flag.ExitOnError)
	resource := flags.String("resource", "nvidia.com/gpu", "name of the extended resource")
	count := flags.Int("count", 1, "number of devices")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	devices := make([]*pluginapi.Device, 0, *count)
	for number := range *count {
		devices = append(devices, &pluginapi.Device{ID: fmt.Sprintf("device-%d", number), Health: pluginapi.Healthy})
	}
	socket := filepath.Join(pluginapi.DevicePluginPath, "modelweights-"+string(uuid.NewUUID())[:8]+".sock")
	stub := plugin.NewDevicePluginStub(devices, socket, *resource, false, false)
	stub.SetAllocFunc(allocate)
	if err := stub.Start(); err != nil {
		return err
	}
	if err := stub.Register(pluginapi.KubeletSocket, *resource, ""); err != nil {
		return err
	}
	for {
		time.Sleep(time.Second)
		if _, err := os.Stat(socket); err != nil {
			return fmt.Errorf("the kubelet removed %s: register again", socket)
		}
	}
}

// allocate gives every container what a GPU plugin gives it by default: the devices' names in the environment.
func allocate(request *pluginapi.AllocateRequest, _ map[string]*pluginapi.Device) (*pluginapi.AllocateResponse, error) {
	response := &pluginapi.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		visible := strings.Join(container.DevicesIds, ",")
		response.ContainerResponses = append(response.ContainerResponses, &pluginapi.ContainerAllocateResponse{
			Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": visible},
		})
	}
	return response, nil
}
