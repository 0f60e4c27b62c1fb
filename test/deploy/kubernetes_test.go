package deploy

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/agentrun/executor/internal/app"
)

// object is a Kubernetes object as kustomize prints it.
type object map[string]any

// at walks into maps and lists; nil where there is nothing.
func at(v any, path ...any) any {
	for _, p := range path {
		switch key := p.(type) {
		case string:
			switch m := v.(type) {
			case object:
				v = m[key]
			case map[string]any:
				v = m[key]
			default:
				return nil
			}
		case int:
			list, _ := v.([]any)
			if key >= len(list) {
				return nil
			}
			v = list[key]
		}
	}
	return v
}

func (o object) String() string { return fmt.Sprint(o["kind"], "/", at(o, "metadata", "name")) }

// kustomize builds a directory of deploy/kubernetes.
func kustomize(t *testing.T, dir string) map[string]object {
	t.Helper()
	kubectl := need(t, "kubectl", "kubernetes-client")
	out := tool(t, nil, kubectl, "kustomize", "--load-restrictor", "LoadRestrictionsNone", "deploy/kubernetes/"+dir)
	objects := map[string]object{}
	for d := yaml.NewDecoder(strings.NewReader(out)); ; {
		var o map[string]any
		err := d.Decode(&o)
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatal(err)
		}
		objects[object(o).String()] = o
	}
}

// flagVariables are the variables of executor serve and reconciler serve.
func flagVariables() map[string]bool {
	known := map[string]bool{}
	for _, word := range strings.FieldsFunc(app.FlagTable(), func(r rune) bool { return r == '`' || r == ' ' || r == ',' }) {
		if strings.HasPrefix(word, "AGENTRUN_") {
			known[word] = true
		}
	}
	return known
}

func TestKubernetes(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{"base", "overlays/small", "overlays/production"} {
		t.Run(dir, func(t *testing.T) {
			objects := kustomize(t, dir)
			executor, reconciler := objects["StatefulSet/agentrun-executor"], objects["Deployment/agentrun-reconciler"]
			if executor == nil || reconciler == nil {
				t.Fatalf("no executor or no reconciler in %v", objects)
			}
			workload(t, executor, dir)
			workload(t, reconciler, dir)
			journal(t, executor)
			for _, name := range []string{
				"PodDisruptionBudget/agentrun-executor", "PodDisruptionBudget/agentrun-reconciler", "NetworkPolicy/agentrun",
			} {
				if objects[name] == nil {
					t.Errorf("there is no %s", name)
				}
			}
			for _, o := range objects {
				if _, ok := o["spec"].(map[string]any); ok && dir != "base" && at(o, "metadata", "namespace") != "agentrun" {
					t.Errorf("%s is in the namespace %v", o, at(o, "metadata", "namespace"))
				}
			}
		})
	}
}

// workload checks what every pod of ours must have.
func workload(t *testing.T, o object, dir string) {
	t.Helper()
	pod := at(o, "spec", "template")
	for key, value := range at(o, "spec", "selector", "matchLabels").(map[string]any) {
		if at(pod, "metadata", "labels", key) != value {
			t.Errorf("%s selects %s=%v, its pods have %v", o, key, value, at(pod, "metadata", "labels", key))
		}
	}
	container := at(pod, "spec", "containers", 0)
	for probe, path := range map[string]string{"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"} {
		if got := at(container, probe, "httpGet", "path"); got != path {
			t.Errorf("%s: %s asks %v, wanted %s", o, probe, got, path)
		}
	}
	known, given := flagVariables(), map[string]bool{}
	list, _ := at(container, "env").([]any)
	for _, e := range list {
		name, _ := at(e, "name").(string)
		given[name] = true
		if !known[name] {
			t.Errorf("%s sets %s, which no flag reads", o, name)
		}
	}
	for _, name := range []string{"AGENTRUN_NATS", "AGENTRUN_INBOX_PREFIX", "AGENTRUN_CONFIG", "AGENTRUN_ID"} {
		if !given[name] {
			t.Errorf("%s does not set %s", o, name)
		}
	}
	if dir == "overlays/production" && (!given["AGENTRUN_TLS_CA"] || !given["AGENTRUN_REPLICAS"]) {
		t.Errorf("%s has no TLS, or one copy of each stream only", o)
	}
	for path, want := range map[string]any{
		"runAsNonRoot": at(pod, "spec", "securityContext", "runAsNonRoot"), "readOnlyRootFilesystem": at(container, "securityContext", "readOnlyRootFilesystem"),
	} {
		if want != true {
			t.Errorf("%s: %s is %v", o, path, want)
		}
	}
	if at(container, "securityContext", "allowPrivilegeEscalation") != false || at(pod, "spec", "automountServiceAccountToken") != false {
		t.Errorf("%s may escalate its privileges, or has a token of the cluster", o)
	}
	grace, err := time.ParseDuration(fmt.Sprint(at(pod, "spec", "terminationGracePeriodSeconds"), "s"))
	if err != nil || grace <= drainTimeout(t) {
		t.Errorf("%s is killed after %s; draining takes up to %s", o, grace, drainTimeout(t))
	}
	mounts, _ := at(container, "volumeMounts").([]any)
	volumes := fmt.Sprint(at(pod, "spec", "volumes"), at(o, "spec", "volumeClaimTemplates"))
	for _, m := range mounts {
		if !strings.Contains(volumes, fmt.Sprint("name:", at(m, "name"))) {
			t.Errorf("%s mounts %v, which is no volume", o, at(m, "name"))
		}
	}
}

// drainTimeout is the default of --drain-timeout.
func drainTimeout(t *testing.T) time.Duration {
	t.Helper()
	var c app.ExecutorConfig
	if err := app.Defaults(&c, []string{"--config", "x"}); err != nil {
		t.Fatal(err)
	}
	return c.DrainTimeout
}

// journal: each executor has its own volume, at --data, which nothing removes.
func journal(t *testing.T, executor object) {
	t.Helper()
	if at(executor, "spec", "persistentVolumeClaimRetentionPolicy", "whenScaled") != "Retain" ||
		at(executor, "spec", "persistentVolumeClaimRetentionPolicy", "whenDeleted") != "Retain" {
		t.Error("journals are removed with their executors")
	}
	data := ""
	list, _ := at(executor, "spec", "template", "spec", "containers", 0, "env").([]any)
	for _, e := range list {
		if at(e, "name") == "AGENTRUN_DATA" {
			data, _ = at(e, "value").(string)
		}
	}
	claim := at(executor, "spec", "volumeClaimTemplates", 0, "metadata", "name")
	mounts, _ := at(executor, "spec", "template", "spec", "containers", 0, "volumeMounts").([]any)
	for _, m := range mounts {
		if at(m, "name") == claim && at(m, "mountPath") == data {
			return
		}
	}
	t.Errorf("the volume %v is not mounted at AGENTRUN_DATA (%s)", claim, data)
}

// TestScaling: KEDA looks at the consumer that the executors pull from, and the number of executors is its own.
func TestScaling(t *testing.T) {
	t.Parallel()
	objects := kustomize(t, "overlays/production")
	scaled := objects["ScaledObject/agentrun-executor"]
	if at(scaled, "spec", "scaleTargetRef", "name") != "agentrun-executor" || at(scaled, "spec", "scaleTargetRef", "kind") != "StatefulSet" {
		t.Errorf("it scales %v", at(scaled, "spec", "scaleTargetRef"))
	}
	for i, stream := range []string{"AGENTRUN_JOBS", "AGENTRUN_WAKES"} {
		m := at(scaled, "spec", "triggers", i, "metadata")
		if at(m, "stream") != stream || at(m, "consumer") != "executor-default" || at(m, "account") != "AGENTRUN" {
			t.Errorf("trigger %d looks at %v", i, m)
		}
	}
	if n := at(objects["StatefulSet/agentrun-executor"], "spec", "replicas"); n != nil {
		t.Errorf("the StatefulSet has a number of its own: %v", n)
	}
}

// TestComposeFile checks what `docker compose config` does not: that variables are flags, and that no two executors share
// a journal.
func TestComposeFile(t *testing.T) {
	t.Parallel()
	var file struct {
		Services map[string]struct {
			Environment map[string]any
			Volumes     []string
			ReadOnly    bool   `yaml:"read_only"`
			Grace       string `yaml:"stop_grace_period"`
			Ports       []string
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, "deploy/compose.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	known, journals := flagVariables(), map[string]string{}
	ours := 0
	for name, s := range file.Services {
		for _, port := range s.Ports {
			if !strings.HasPrefix(port, "127.0.0.1:") {
				t.Errorf("%s is open to the network: %s", name, port)
			}
		}
		if !strings.HasPrefix(name, "executor") && !strings.HasPrefix(name, "reconciler") {
			continue
		}
		ours++
		for variable := range s.Environment {
			if strings.HasPrefix(variable, "AGENTRUN_") && !known[variable] {
				t.Errorf("%s sets %s, which no flag reads", name, variable)
			}
		}
		if s.Environment["AGENTRUN_ID"] != name || !s.ReadOnly {
			t.Errorf("%s is called %v, or may write to its image", name, s.Environment["AGENTRUN_ID"])
		}
		if grace, err := time.ParseDuration(s.Grace); err != nil || grace <= drainTimeout(t) {
			t.Errorf("%s is killed after %s", name, s.Grace)
		}
		for _, v := range s.Volumes {
			if volume, ok := strings.CutSuffix(v, ":/data"); ok {
				if other := journals[volume]; other != "" {
					t.Errorf("%s and %s share the volume %s", name, other, volume)
				}
				journals[volume] = name
			}
		}
	}
	if ours != 4 || len(journals) != 2 {
		t.Errorf("%d processes, %d journals", ours, len(journals))
	}
}
