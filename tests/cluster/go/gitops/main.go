// gitops reads objects, a line of JSON each, and writes for each what deployers would make of it: kstatus as in kubectl's
// and kpt's tools, kstatus as in Flux, Flux with expressions of a Kustomization, and Argo CD with a script. The libraries are
// theirs: Argo CD runs its scripts by gopher-lua. Started by tests/integration/test_gitops.py.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"

	fluxstatus "github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/fluxcd/pkg/apis/kustomize"
	"github.com/fluxcd/pkg/runtime/cel"
	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	sigsstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

type verdict struct {
	Kstatus     string `json:"kstatus"`
	Flux        string `json:"flux"`
	FluxExprs   string `json:"fluxExprs"`
	Argo        string `json:"argo"`
	ArgoMessage string `json:"argoMessage"`
}

type judge struct {
	expressions *cel.StatusEvaluator
	script      string
}

func (j judge) verdict(line []byte) (found verdict, err error) {
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(line); err != nil {
		return found, err
	}
	sigs, err := sigsstatus.Compute(object)
	if err != nil {
		return found, err
	}
	flux, err := fluxstatus.Compute(object)
	if err != nil {
		return found, err
	}
	exprs, err := j.expressions.Evaluate(context.Background(), object)
	if err != nil {
		return found, err
	}
	found = verdict{Kstatus: sigs.Status.String(), Flux: flux.Status.String(), FluxExprs: exprs.Status.String()}
	found.Argo, found.ArgoMessage, err = j.argo(object)
	return found, err
}

// argo runs the script as Argo CD does: with few libraries, the object as the global obj, and a table as its result.
func (j judge) argo(object *unstructured.Unstructured) (string, string, error) {
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	for name, open := range map[string]lua.LGFunction{
		lua.LoadLibName: lua.OpenPackage, lua.BaseLibName: lua.OpenBase, lua.TabLibName: lua.OpenTable, lua.StringLibName: lua.OpenString,
	} {
		state.Push(state.NewFunction(open))
		state.Push(lua.LString(name))
		state.Call(1, 0)
	}
	state.SetGlobal("obj", value(state, object.Object))
	if err := state.DoString(j.script); err != nil {
		return "", "", err
	}
	table, ok := state.Get(-1).(*lua.LTable)
	if !ok {
		return "", "", errors.New("the script returned no table")
	}
	return table.RawGetString("status").String(), table.RawGetString("message").String(), nil
}

func value(state *lua.LState, from any) lua.LValue {
	switch from := from.(type) {
	case bool:
		return lua.LBool(from)
	case string:
		return lua.LString(from)
	case int64:
		return lua.LNumber(from)
	case float64:
		return lua.LNumber(from)
	case []any:
		table := state.NewTable()
		for _, each := range from {
			table.Append(value(state, each))
		}
		return table
	case map[string]any:
		table := state.NewTable()
		for key, each := range from {
			table.RawSetString(key, value(state, each))
		}
		return table
	}
	return lua.LNil
}

func run() error {
	script := flag.String("script", "", "Argo CD's script for health, in Lua")
	expressions := flag.String("expressions", "", "one of a Kustomization's healthCheckExprs, as JSON")
	flag.Parse()
	var given kustomize.HealthCheckExpressions
	if err := json.Unmarshal([]byte(*expressions), &given); err != nil {
		return err
	}
	evaluator, err := cel.NewStatusEvaluator(&given)
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	out := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		found, err := (judge{evaluator, *script}).verdict(lines.Bytes())
		if err != nil {
			return err
		}
		if err := out.Encode(found); err != nil {
			return err
		}
	}
	return lines.Err()
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "gitops:", err)
		os.Exit(1)
	}
}
