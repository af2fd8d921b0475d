-- +goose Up

-- What could not be processed, kept for operators: the message itself, and why. What became of the order stands in orders.
CREATE TABLE dead_letters (
  id          BIGINT        NOT NULL AUTO_INCREMENT PRIMARY KEY,
  digest      CHAR(64)      CHARACTER SET ascii COLLATE ascii_bin NOT NULL, -- of queue and payload: the same message dies again as the same letter
  queue       VARCHAR(64)   NOT NULL, -- where it died
  reason      VARCHAR(1000) NOT NULL,
  payload     MEDIUMBLOB    NOT NULL, -- as it came, at most its first 64 KiB
  size        BIGINT        NOT NULL, -- of the payload as it came
  readable    BOOLEAN       NOT NULL, -- the payload is an order
  order_id    VARCHAR(56)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
  sale_id     BIGINT        NOT NULL DEFAULT 0,
  deliveries  BIGINT        NOT NULL, -- before it died, of the last time
  times       BIGINT        NOT NULL DEFAULT 1, -- that it died
  first_at    DATETIME(3)   NOT NULL,
  last_at     DATETIME(3)   NOT NULL,
  replayed_at DATETIME(3)   NULL,
  UNIQUE KEY dead_letters_once (digest),
  KEY dead_letters_open (replayed_at, id)
) DEFAULT CHARSET=utf8mb4;

-- +goose Down
DROP TABLE dead_letters;
