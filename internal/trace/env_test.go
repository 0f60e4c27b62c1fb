package trace

import (
	"log/slog"
	"strings"
	"testing"
)

func TestWanted(t *testing.T) {
	for _, x := range []struct {
		vars string
		on   bool
		err  string
	}{
		{"", false, ""},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318", true, ""},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://c:4318/v1/traces", true, ""},
		{"OTEL_TRACES_EXPORTER=otlp", true, ""},
		{"OTEL_TRACES_EXPORTER=none OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318", false, ""},
		{"OTEL_SDK_DISABLED=true OTEL_TRACES_EXPORTER=otlp", false, ""},
		{"OTEL_TRACES_EXPORTER=zipkin", false, "OTEL_TRACES_EXPORTER"},
		{"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=http://c:4318/v1/metrics", false, ""},
		{"OTEL_TRACES_EXPORTER=otlp OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf", true, ""},
		{"OTEL_TRACES_EXPORTER=otlp OTEL_EXPORTER_OTLP_PROTOCOL=grpc", false, "OTEL_EXPORTER_OTLP_PROTOCOL"},
		{"OTEL_TRACES_EXPORTER=otlp OTEL_EXPORTER_OTLP_PROTOCOL=grpc OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf", true, ""},
	} {
		getenv := func(name string) string {
			for _, v := range strings.Fields(x.vars) {
				if value, ok := strings.CutPrefix(v, name+"="); ok {
					return value
				}
			}
			return ""
		}
		on, err := wanted(getenv)
		if on != x.on || (err == nil) != (x.err == "") || err != nil && !strings.Contains(err.Error(), x.err) {
			t.Errorf("%s: %v, %v", x.vars, on, err)
		}
		if tracer, _ := FromEnvironment(t.Context(), getenv, "service", "id", slog.New(slog.DiscardHandler)); (tracer != nil) != x.on {
			t.Errorf("%s: tracer %v", x.vars, tracer)
		} else if tracer != nil {
			if err := tracer.Close(t.Context()); err != nil {
				t.Errorf("%s: %v", x.vars, err)
			}
		}
	}
}
