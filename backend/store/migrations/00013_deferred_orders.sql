-- +goose Up

-- Messages of older epochs whose sale was closed when a consumer reached them. They are acknowledged to the broker once they
-- are here, and are adopted from here, in the order of n, when their sale takes them.
CREATE TABLE deferred_orders (
  n             BIGINT      NOT NULL AUTO_INCREMENT PRIMARY KEY,
  sale_id       BIGINT      NOT NULL,
  entry         TEXT        NOT NULL, -- JSON
  tries         INT         NOT NULL DEFAULT 0, -- that nobody reported the end of
  claimed_until BIGINT      NOT NULL DEFAULT 0, -- milliseconds by Redis's clock
  deferred_at   DATETIME(3) NOT NULL,
  KEY sale (sale_id, n)
);

-- +goose Down
DROP TABLE deferred_orders;
