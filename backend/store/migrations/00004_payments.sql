-- +goose Up

-- What payment providers took from shoppers, one row a payment, kept like the orders.
CREATE TABLE payments (
  id         BIGINT       NOT NULL AUTO_INCREMENT PRIMARY KEY,
  provider   VARCHAR(32)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  payment_id VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, -- the provider's
  order_id   VARCHAR(56)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  amount     BIGINT       NOT NULL, -- as the provider says, in minor units
  currency   VARCHAR(3)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  status     VARCHAR(16)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '', -- failed, paid, refund_due, refunded
  reason     VARCHAR(16)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '', -- why a refund is due
  first_at   DATETIME(3)  NOT NULL,
  last_at    DATETIME(3)  NOT NULL,
  UNIQUE KEY payments_once (provider, payment_id),
  KEY payments_status (status, id),
  KEY payments_order (order_id)
);

-- The deliveries of webhooks, so that a repeat gets the first one's answer. Pruned after payment.Kept.
CREATE TABLE payment_events (
  provider    VARCHAR(32)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  event_id    VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, -- the provider's
  digest      CHAR(64)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL, -- of what the event says
  result      VARCHAR(16)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  received_at DATETIME(3)  NOT NULL,
  PRIMARY KEY (provider, event_id),
  KEY payment_events_received (received_at)
);

-- When an overdue order was last found not to fit its stock row: so that it keeps no other from expiring.
ALTER TABLE orders ADD COLUMN stuck_at DATETIME(3) NULL;

CREATE INDEX admin_requests_created ON admin_requests (created_at);

-- +goose Down
DROP INDEX admin_requests_created ON admin_requests;
ALTER TABLE orders DROP COLUMN stuck_at;
DROP TABLE payment_events, payments;
