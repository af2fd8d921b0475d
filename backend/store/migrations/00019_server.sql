-- +goose Up

-- The server that was compared with Redis last (store.Compared). A copy that takes over has its primary's row, and is not the server
-- that it names.
CREATE TABLE compared_server (
  only_row    TINYINT      NOT NULL PRIMARY KEY,
  address     VARCHAR(512) NOT NULL, -- server_id, hostname and port, as the server says
  started     BIGINT       NOT NULL, -- when it was started, in seconds by its own clock
  compared_at DATETIME(3)  NOT NULL
) DEFAULT CHARSET=utf8mb4;

-- +goose Down
DROP TABLE compared_server;
