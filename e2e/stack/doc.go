// Package stack starts the real system on one machine: private instances of Redis, RabbitMQ and MariaDB, the backend and
// the gateway, everything on loopback and under one directory.
//
// The machine's own services are never touched: ports, data, users and even the broker's epmd belong to the directory.
// What is chosen by chance (ports, passwords) is chosen once and remembered there, so that a restarted server comes back
// on the same port with the same data. Processes outlive the launcher: they have sessions and log files of their own, and
// are found again by process id and start time.
//
// The package reads /proc and so needs Linux.
//
// The directory holds:
//
//	settings.json               ports and passwords
//	env                         REDIS_ADDR, MYSQL_DSN, AMQP_URL, AMQP_MANAGEMENT_URL in shell syntax
//	gateway.yaml, backend.yaml  configurations, written at every Up
//	NAME.pid                    the process that serves: redis, rabbitmq, mysql, backend, gateway (and epmd)
//	identity/NAME               when that process started
//	data/NAME, log/NAME.log
package stack
