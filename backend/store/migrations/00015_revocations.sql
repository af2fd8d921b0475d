-- +goose Up

-- Tokens that are worth nothing before they expire: one by its jti, or a uid's that were issued before a time.
CREATE TABLE revocations (
  id        BIGINT       NOT NULL AUTO_INCREMENT PRIMARY KEY,
  kind      VARCHAR(3)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL, -- jti, uid
  subject   VARCHAR(256) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  before_at DATETIME(3)  NOT NULL, -- of a uid
  until_at  DATETIME(3)  NOT NULL, -- from then on it is needless
  gone      BOOLEAN      NOT NULL, -- it was taken back; gateways that have it must be told so until until_at
  version   BIGINT       NOT NULL, -- that of the last change
  made_at   DATETIME(3)  NOT NULL,
  UNIQUE KEY revocations_subject (kind, subject),
  KEY revocations_version (version),
  KEY revocations_until (until_at)
);

-- The number of changes. Whoever makes one locks the row, so versions are committed in order.
CREATE TABLE revocation_versions (
  only_row TINYINT NOT NULL PRIMARY KEY,
  version  BIGINT  NOT NULL
);
INSERT INTO revocation_versions (only_row, version) VALUES (1, 0);

-- +goose Down
DROP TABLE revocation_versions, revocations;
