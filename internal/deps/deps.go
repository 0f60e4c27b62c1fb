package deps

import (
	_ "github.com/alecthomas/kong"
	_ "github.com/goccy/go-yaml"
	_ "github.com/google/cel-go/cel"
	_ "github.com/google/uuid"
	_ "github.com/invopop/jsonschema"
	_ "github.com/mattn/go-isatty"
	_ "github.com/modelcontextprotocol/go-sdk/mcp"
	_ "github.com/nats-io/nats-server/v2/server"
	_ "github.com/nats-io/nats.go/jetstream"
	_ "github.com/nats-io/nats.go/micro"
	_ "github.com/prometheus/client_golang/prometheus/promhttp"
	_ "github.com/santhosh-tekuri/jsonschema/v6"
	_ "go.etcd.io/bbolt"
	_ "go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	_ "go.opentelemetry.io/otel/sdk/trace"
	_ "golang.org/x/sync/errgroup"
	_ "golang.org/x/time/rate"
	_ "golang.org/x/sys/unix"
	_ "golang.org/x/term"
)
