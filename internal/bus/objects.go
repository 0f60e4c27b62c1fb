package bus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentrun/executor/internal/port"
)

// PutObject stores a large result under name and returns when it is acknowledged. The same name again replaces it.
// The bucket is made when it is first needed; its objects expire with the outcomes that name them. ErrDenied where this
// user may not store any, and *Refusal where the server will not: trying again is no use.
func (c *Conn) PutObject(ctx context.Context, name string, data []byte) error {
	ctx, stop := c.untilDenied(ctx, port.ObjectsBucket)
	defer stop()
	bucket, err := c.objects(ctx)
	if err == nil {
		meta := jetstream.ObjectMeta{Name: name}
		if most := c.MessageMax(); most > 0 && most < objectChunk {
			meta.Opts = &jetstream.ObjectMetaOptions{ChunkSize: uint32(most)} //nolint:gosec // small
		}
		_, err = bucket.Put(ctx, meta, bytes.NewReader(data))
	}
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); errors.Is(cause, ErrDenied) {
		err = cause
	}
	var api *jetstream.APIError
	if errors.As(err, &api) && api.Code < 500 && api.Code != 404 && api.Code != 429 {
		err = &Refusal{Code: int(api.ErrorCode), Description: api.Description}
	}
	return fmt.Errorf("bus: put object %s: %w", name, err)
}

// objectChunk is nats.go's own size of an object's parts.
const objectChunk = 128 << 10

// untilDenied ends the context when the server refuses this user a subject with that name in it: it says so to nobody's
// request, which would wait for its whole time.
func (c *Conn) untilDenied(ctx context.Context, name string) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	denied := c.next(&c.denied)
	go func() {
		for ; ; denied = c.next(&c.denied) {
			select {
			case <-ctx.Done():
				return
			case <-denied:
			}
			c.mu.Lock()
			denial := c.denial
			c.mu.Unlock()
			if strings.Contains(denial.Error(), name) {
				cancel(fmt.Errorf("%w: %w", ErrDenied, denial))
				return
			}
		}
	}()
	return ctx, func() { cancel(nil) }
}

// GetObject reads a large result whole; port.ErrNotFound if it is not there (any more).
func (c *Conn) GetObject(ctx context.Context, name string) ([]byte, error) {
	bucket, err := c.objects(ctx)
	if err != nil {
		return nil, fmt.Errorf("bus: get object %s: %w", name, err)
	}
	data, err := bucket.GetBytes(ctx, name)
	if errors.Is(err, jetstream.ErrObjectNotFound) {
		return nil, fmt.Errorf("bus: get object %s: %w", name, port.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("bus: get object %s: %w", name, err)
	}
	return data, nil
}

func (c *Conn) objects(ctx context.Context) (jetstream.ObjectStore, error) {
	bucket, err := c.js.ObjectStore(ctx, port.ObjectsBucket)
	if err == nil || !errors.Is(err, jetstream.ErrBucketNotFound) {
		return bucket, err
	}
	replicas, retention := c.opts.Keeper.Bucket()
	return c.js.CreateOrUpdateObjectStore(ctx, jetstream.ObjectStoreConfig{
		Bucket: port.ObjectsBucket, Description: "results above 256 KiB", TTL: retention, Storage: jetstream.FileStorage, Replicas: replicas,
	})
}
