package trace

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
)

// FromEnvironment makes the tracer that the standard variables of OpenTelemetry ask for; nil if they ask for none, which is
// so when nothing is set. Traces are on when OTEL_TRACES_EXPORTER is otlp, or when it is not set and
// OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is; OTEL_SDK_DISABLED=true turns them off. All other
// variables of the SDK and its OTLP exporter (endpoint, headers, TLS, sampler, batching, resource) are read by these.
//
// The protocol is OTLP over HTTP with protobuf. An error says what is asked for and not to be had; the process is better
// off running without traces than not running. service and id name the process unless OTEL_SERVICE_NAME and
// OTEL_RESOURCE_ATTRIBUTES do.
func FromEnvironment(ctx context.Context, getenv func(string) string, service, id string, log *slog.Logger) (*Tracer, error) {
	on, err := wanted(getenv)
	if !on || err != nil {
		return nil, err
	}
	about, err := resource.New(ctx,
		resource.WithAttributes(attribute.String("service.name", service), attribute.String("service.instance.id", id)),
		resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("traces: OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("traces: %w", err)
	}
	// The SDK has one place for what goes wrong, for the whole process. Its texts may quote the collector's answer.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		log.Warn("traces are not exported")
		log.Debug("traces are not exported", "error", err)
	}))
	return New(about, sdk.NewBatchSpanProcessor(exporter)), nil
}

func wanted(getenv func(string) string) (bool, error) {
	if strings.EqualFold(getenv("OTEL_SDK_DISABLED"), "true") {
		return false, nil
	}
	switch exporter := strings.TrimSpace(getenv("OTEL_TRACES_EXPORTER")); exporter {
	case "none":
		return false, nil
	case "otlp":
	case "":
		if getenv("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "" {
			return false, nil
		}
	default:
		return false, fmt.Errorf("traces are off: OTEL_TRACES_EXPORTER is %q, must be otlp or none", exporter)
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		switch protocol := getenv(name); protocol {
		case "":
			continue
		case "http/protobuf":
			return true, nil
		default:
			return false, fmt.Errorf("traces are off: %s is %q, must be http/protobuf (port 4318 of most collectors)", name, protocol)
		}
	}
	return true, nil
}
