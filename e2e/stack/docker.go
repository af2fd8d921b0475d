package stack

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"floodgate.internal/shared/development"
)

const (
	native = "native"
	docker = "docker"
)

// startOnAny starts the servers: in containers where a Docker engine answers, else as native instances. What was taken
// first stays, since the data is there. An engine that cannot run them (no registry in reach, say) is left for native.
func (v *Servers) startOnAny(ctx context.Context, o Options) error {
	if v.dockerized() || v.settings.Engine == "" && !o.Native && dockerAnswers(ctx) {
		v.report("Docker: redis, rabbitmq and mysql run in containers (docker compose, project %s), backend and gateway as processes", v.composeProject())
		err := v.dockerUp(ctx, o)
		if err == nil {
			return v.useEngine(docker)
		}
		if v.dockerized() || ctx.Err() != nil {
			return err
		}
		v.report("taking private native instances instead, because: %v", err)
		if err := v.dockerDown(ctx, o, true); err != nil {
			return err
		}
	}
	if err := Install(ctx, v.report, o.Log, ForServers); err != nil {
		return err
	}
	if err := v.Start(ctx); err != nil {
		return err
	}
	return v.useEngine(native)
}

func (v *Servers) dockerized() bool { return v.settings.Engine == docker }

func (v *Servers) useEngine(engine string) error {
	if v.settings.Engine == engine {
		return nil
	}
	v.settings.Engine = engine
	return v.settings.save(v.dir)
}

func dockerAnswers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for _, args := range [][]string{{"info"}, {"compose", "version"}} {
		if exec.CommandContext(ctx, "docker", args...).Run() != nil {
			return false
		}
	}
	return true
}

// dockerUp starts the three servers of docker-compose.yml, with their ports published on loopback, and waits until they
// are healthy.
func (v *Servers) dockerUp(ctx context.Context, o Options) error {
	if err := writeFile(v.composeFile(), []byte(v.composeOverride())); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute) // the first time it pulls the images
	defer cancel()
	if err := v.compose(ctx, o, "up", "-d", "--wait", "redis", "rabbitmq", "mysql"); err != nil {
		return err
	}
	for _, p := range []*Process{v.Redis, v.RabbitMQ, v.MySQL} {
		v.recordContainer(ctx, o, p)
		if err := p.awaitReady(ctx); err != nil {
			return err
		}
	}
	return nil
}

// recordContainer writes the pid file of a server in a container. Where the engine's processes are not ours to see (a
// virtual machine, another user's) there is none.
func (v *Servers) recordContainer(ctx context.Context, o Options, p *Process) {
	p.forget()
	id, err := v.composeCommand(ctx, o, "ps", "-q", p.name).Output()
	if err != nil {
		return
	}
	out, err := exec.CommandContext(ctx, "docker", "inspect", "-f", "{{.State.Pid}}", strings.TrimSpace(string(id))).Output()
	if err != nil {
		return
	}
	if pid, err := strconv.Atoi(strings.TrimSpace(string(out))); err == nil && pid > 0 {
		_ = p.record(pid) // the pid is for people: the container goes on without it
	}
}

// dockerDown stops the containers; with clean their volumes go too.
func (v *Servers) dockerDown(ctx context.Context, o Options, clean bool) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	args := []string{"down"}
	if clean {
		args = append(args, "--volumes")
	}
	if err := v.compose(ctx, o, args...); err != nil {
		return err
	}
	for _, p := range []*Process{v.Redis, v.RabbitMQ, v.MySQL} {
		p.forget()
	}
	return nil
}

func (v *Servers) compose(ctx context.Context, o Options, args ...string) error {
	cmd := v.composeCommand(ctx, o, args...)
	cmd.Stdout, cmd.Stderr = o.Log, o.Log
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("docker compose %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

func (v *Servers) composeCommand(ctx context.Context, o Options, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "docker", append([]string{"compose", "-p", v.composeProject(),
		"-f", filepath.Join(o.Root, "docker-compose.yml"), "-f", v.composeFile()}, args...)...)
	// The file wants all of them, also those of services that are not started here.
	cmd.Env = append(os.Environ(),
		"MYSQL_PASSWORD="+v.settings.Password, "MYSQL_ROOT_PASSWORD="+v.settings.Password,
		"RABBITMQ_PASSWORD="+v.settings.Password, "REDIS_PASSWORD="+v.settings.Password,
		"FLOODGATE_ADMIN_TOKEN="+development.AdminToken, "FLOODGATE_OPS_TOKEN="+development.AdminToken,
		"FLOODGATE_SIGNING_KEY="+development.SigningSecret, "LOGIN_PUBLIC_KEY=-", "LOGIN_AUDIENCE=-")
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// composeProject is unique to the directory: another checkout has containers and volumes of its own.
func (v *Servers) composeProject() string {
	return "floodgate-dev-" + strconv.Itoa(v.settings.RedisPort)
}

func (v *Servers) composeFile() string { return filepath.Join(v.dir, "compose.yml") }

// composeOverride changes docker-compose.yml from production to one developer's machine.
func (v *Servers) composeOverride() string {
	s := v.settings
	return fmt.Sprintf(`# Written by the launcher: what differs from docker-compose.yml on a developer's machine.
networks:
  core:
    internal: false # published ports need a way out
services:
  redis:
    ports: ["127.0.0.1:%d:6379"]
    command: ["redis-server", "--appendonly", "yes", "--appendfsync", "always", "--save", "", "--maxmemory-policy", "noeviction"]
  rabbitmq:
    ports: ["127.0.0.1:%d:5672", "127.0.0.1:%d:15672"]
  mysql:
    ports: ["127.0.0.1:%d:3306"]
`, s.RedisPort, s.AMQPPort, s.ManagementPort, s.MySQLPort)
}
