//go:build servers

package backendtest_test

import (
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"floodgate.internal/backend/backendtest"
)

func TestEachTestHasItsOwnCorner(t *testing.T) {
	db, redis := backendtest.MySQL(t), backendtest.Redis(t)
	sale := backendtest.Sale(t, db, backendtest.SaleOptions{})
	backendtest.Load(t, db, redis, sale)
	backendtest.Balanced(t, db, sale)
	backendtest.RedisBalanced(t, db, redis, sale)
	if other := backendtest.Redis(t); other.Client().Prefix() == redis.Client().Prefix() {
		t.Errorf("two stores share the prefix %s", other.Client().Prefix())
	}
	c, err := amqp.Dial(backendtest.AMQP(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
