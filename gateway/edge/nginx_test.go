package edge

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// nginxConf is one process of nginx that refuses as the gateway does, with the same body: what has sold out by a look into a
// shared dictionary (lua), who is too fast by limit_req, keyed by the token.
const nginxConf = `
load_module %[1]s/ndk_http_module.so;
load_module %[1]s/ngx_http_lua_module.so;
daemon off;
master_process off;
pid %[2]s/nginx.pid;
error_log stderr crit;
events { worker_connections 1024; }
http {
	access_log off;
	server_tokens off;
	keepalive_requests 1000000000;
	client_body_temp_path %[2]s; proxy_temp_path %[2]s; fastcgi_temp_path %[2]s; uwsgi_temp_path %[2]s; scgi_temp_path %[2]s;
	lua_shared_dict gone 1m;
	init_by_lua_block { ngx.shared.gone:set("3", true) }
	limit_req_zone $http_authorization zone=user:10m rate=1r/m;
	limit_req_status 429;
	server {
		listen %[3]s;
		default_type application/problem+json;
		location = /v1/sales/6/orders {
			limit_req zone=user;
			error_page 429 = @limited;
			content_by_lua_block { ngx.exit(204) }
		}
		location @limited {
			add_header Retry-After 5 always;
			return 429 '%[5]s';
		}
		location ~ ^/v1/sales/(\d+)/orders$ {
			access_by_lua_block {
				if ngx.shared.gone:get(ngx.var[1]) then
					ngx.status = 409
					ngx.header["Content-Type"] = "application/problem+json"
					ngx.header["Cache-Control"] = "no-store"
					ngx.header["Content-Length"] = %[6]d
					ngx.print('%[4]s')
					return ngx.exit(409)
				end
			}
			content_by_lua_block { ngx.exit(204) }
		}
	}
}
`

const nginxModules = "/usr/lib/nginx/modules" // where Debian's nginx-light and libnginx-mod-http-lua have them

// startNginx starts nginx beside the gateway. cpu is what it has used, in nanoseconds. ok is false where there is none.
func startNginx(b *testing.B, gone, limited []byte) (addr string, cpu func() int64, ok bool) {
	if _, err := os.Stat(filepath.Join(nginxModules, "ngx_http_lua_module.so")); err != nil {
		b.Logf("no comparison with nginx: %v (apt-get install nginx-light libnginx-mod-http-lua)", err)
		return "", nil, false
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	addr = free.Addr().String()
	free.Close()
	dir := b.TempDir()
	conf := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(conf, fmt.Appendf(nil, nginxConf, nginxModules, dir, addr, gone, limited, len(gone)), 0o600); err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command("nginx", "-p", dir, "-c", conf)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	for end := time.Now().Add(20 * time.Second); ; {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			c.Close()
			break
		}
		if time.Now().After(end) {
			b.Fatalf("nginx does not listen: %v", err)
		}
		time.Sleep(5 * time.Millisecond)
	}
	return addr, func() int64 {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", cmd.Process.Pid)) // time on a processor, time in line for one, turns
		if err != nil {
			b.Fatal(err)
		}
		used, _, _ := strings.Cut(string(text), " ")
		n, err := strconv.ParseInt(used, 10, 64)
		if err != nil {
			b.Fatal(err)
		}
		return n
	}, true
}
