package bus

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"
)

// PutObject stores a large result under name and returns when it is acknowledged. The same name again replaces it.
// The bucket is made when it is first needed; its objects expire with the outcomes that name them.
func (c *Conn) PutObject(ctx context.Context, name string, data []byte) error {
	bucket, err := c.objects(ctx)
	if err == nil {
		_, err = bucket.PutBytes(ctx, name, data)
	}
	if err != nil {
		return fmt.Errorf("bus: put object %s: %w", name, err)
	}
	return nil
}

// GetObject reads a large result whole; ErrNotFound if it is not there (any more).
func (c *Conn) GetObject(ctx context.Context, name string) ([]byte, error) {
	bucket, err := c.objects(ctx)
	if err != nil {
		return nil, fmt.Errorf("bus: get object %s: %w", name, err)
	}
	data, err := bucket.GetBytes(ctx, name)
	if errors.Is(err, jetstream.ErrObjectNotFound) {
		return nil, fmt.Errorf("bus: get object %s: %w", name, ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("bus: get object %s: %w", name, err)
	}
	return data, nil
}

func (c *Conn) objects(ctx context.Context) (jetstream.ObjectStore, error) {
	bucket, err := c.js.ObjectStore(ctx, ObjectsBucket)
	if err == nil || !errors.Is(err, jetstream.ErrBucketNotFound) {
		return bucket, err
	}
	c.mu.Lock()
	cfg := c.config
	c.mu.Unlock()
	return c.js.CreateOrUpdateObjectStore(ctx, jetstream.ObjectStoreConfig{
		Bucket: ObjectsBucket, Description: "results above 256 KiB", TTL: choose(cfg.RunRetention, 0, retentionDefault),
		Storage: jetstream.FileStorage, Replicas: choose(cfg.Replicas, 0, replicasDefault),
	})
}
