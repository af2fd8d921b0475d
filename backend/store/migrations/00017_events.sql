-- +goose Up

-- What the shop's endpoints are told: a row for each event and endpoint, written in the transaction of the change.
CREATE TABLE events (
  id         BIGINT       NOT NULL AUTO_INCREMENT PRIMARY KEY, -- of one ref in the order of its changes
  endpoint   VARCHAR(32)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  type       VARCHAR(32)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  ref        VARCHAR(56)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL, -- order id, or sale:ID
  body       MEDIUMTEXT   NOT NULL,
  state      VARCHAR(16)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT 'waiting', -- delivered, failed
  attempts   INT          NOT NULL DEFAULT 0,
  claim      VARCHAR(32)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '', -- of the process that delivers it, until due_at
  last_error VARCHAR(255) NOT NULL DEFAULT '',
  created_at DATETIME(3)  NOT NULL,
  due_at     DATETIME(3)  NOT NULL, -- while it waits: the next try; then: when that was over
  KEY events_due (endpoint, state, due_at),
  KEY events_ref (endpoint, ref, id)
) DEFAULT CHARSET=utf8mb4;

-- The moments of sales that were told: each once.
CREATE TABLE event_marks (
  sale_id BIGINT      NOT NULL,
  type    VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  PRIMARY KEY (sale_id, type)
);

-- +goose Down
DROP TABLE event_marks, events;
