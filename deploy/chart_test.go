package deploy

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	strict "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

var write = flag.Bool("write", false, "write deploy/kubernetes and deploy/testdata anew")

func sample(t *testing.T) object {
	t.Helper()
	b, err := os.ReadFile("kubernetes-values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return parseValues(t, string(b))
}

// What lies over the sample values, one by one.
var variants = map[string]string{
	"plain":            ``,
	"public tls":       `gateway: {tls: {secretName: public-tls}, service: {type: LoadBalancer, port: 443, annotations: {a/b: c}}}`,
	"backend tls":      `backend: {tls: {secretName: backend-tls}}`,
	"mutual tls":       `{gateway: {tls: {secretName: public-tls}}, backend: {tls: {secretName: backend-tls, clientSecretName: gateway-tls}}}`,
	"autoscaling":      `{gateway: {autoscaling: {enabled: true, min: 2, max: 9, cpu: 60}}, backend: {roles: {api: {autoscaling: {enabled: true, min: 2, max: 5, cpu: 70, metric: {name: backend_in_flight, averageValue: 500}}}}}}`,
	"no policies":      `networkPolicy: {enabled: false}`,
	"nobody operates":  `networkPolicy: {operators: [], monitoring: [], gatewayEgress: []}`,
	"a closed public":  `networkPolicy: {public: [{ipBlock: {cidr: 192.0.2.0/24}}], backendEgress: [{ports: [{port: 4318}]}]}`,
	"monitoring":       `monitoring: {serviceMonitor: {enabled: true, interval: 5s, labels: {release: prometheus}}, prometheusRule: {enabled: true, labels: {release: prometheus}}}`,
	"pods":             `{image: {pullSecrets: [{name: registry}], tag: ""}, gateway: {pod: {nodeSelector: {disk: ssd}, topologySpreadConstraints: []}, drainSeconds: 60}, backend: {pod: {priorityClassName: high}, drainSeconds: 0}}`,
	"no broker":        `backend: {config: {queue: {driver: redis-stream}}}`,
	"own listen, keys": `{gateway: {config: {limits: {order: {rate: 0.5, burst: 2}}, server: {max_connections: 20000}}}, backend: {config: {orders: {max_queued: 5}}}}`,
}

// system is what was rendered, by kind and name.
type system struct {
	t           *testing.T
	deployments map[string]*appsv1.Deployment
	jobs        map[string]*batchv1.Job
	services    map[string]*corev1.Service
	configs     map[string]*corev1.ConfigMap
	budgets     map[string]*policyv1.PodDisruptionBudget
	scalers     map[string]*autoscalingv2.HorizontalPodAutoscaler
	policies    map[string]*networkingv1.NetworkPolicy
	monitors    map[string]*serviceMonitor
	rules       map[string]*prometheusRule
}

// The fields of the Prometheus operator's types that the chart uses.
type serviceMonitor struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		JobLabel  string               `json:"jobLabel"`
		Selector  metav1.LabelSelector `json:"selector"`
		Endpoints []struct {
			Port     string `json:"port"`
			Path     string `json:"path"`
			Interval string `json:"interval"`
		} `json:"endpoints"`
	} `json:"spec"`
}

type prometheusRule struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Groups []struct {
			Name     string `json:"name"`
			Interval string `json:"interval,omitempty"`
			Rules    []struct {
				Alert       string            `json:"alert,omitempty"`
				Record      string            `json:"record,omitempty"`
				Expr        string            `json:"expr"`
				For         string            `json:"for,omitempty"`
				Labels      map[string]string `json:"labels,omitempty"`
				Annotations map[string]string `json:"annotations,omitempty"`
			} `json:"rules"`
		} `json:"groups"`
	} `json:"spec"`
}

// keep decodes a document into a Kubernetes type: an unknown, misspelled or doubled field is an error.
func keep[T any](t *testing.T, into *map[string]*T, doc string) {
	t.Helper()
	text, err := yaml.YAMLToJSONStrict([]byte(doc))
	if err != nil {
		t.Fatalf("%v\n%s", err, doc)
	}
	v := new(T)
	wrong, err := strict.UnmarshalStrict(text, v)
	if err != nil || len(wrong) > 0 {
		t.Fatalf("%v %v\n%s", err, wrong, doc)
	}
	name := any(v).(metav1.Object).GetName()
	if *into == nil {
		*into = map[string]*T{}
	}
	if name == "" || (*into)[name] != nil {
		t.Errorf("the name %q is empty, or there twice\n%s", name, doc)
	}
	(*into)[name] = v
}

func decode(t *testing.T, files map[string]string) *system {
	t.Helper()
	s := &system{t: t}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		for _, doc := range documents(files[name]) {
			var m metav1.TypeMeta
			if err := yaml.Unmarshal([]byte(doc), &m); err != nil {
				t.Fatalf("%s: %v\n%s", name, err, doc)
			}
			switch m.APIVersion + " " + m.Kind {
			case "apps/v1 Deployment":
				keep(t, &s.deployments, doc)
			case "batch/v1 Job":
				keep(t, &s.jobs, doc)
			case "v1 Service":
				keep(t, &s.services, doc)
			case "v1 ConfigMap":
				keep(t, &s.configs, doc)
			case "policy/v1 PodDisruptionBudget":
				keep(t, &s.budgets, doc)
			case "autoscaling/v2 HorizontalPodAutoscaler":
				keep(t, &s.scalers, doc)
			case "networking.k8s.io/v1 NetworkPolicy":
				keep(t, &s.policies, doc)
			case "monitoring.coreos.com/v1 ServiceMonitor":
				keep(t, &s.monitors, doc)
			case "monitoring.coreos.com/v1 PrometheusRule":
				keep(t, &s.rules, doc)
			default:
				t.Errorf("%s: nobody expects a %s of %s\n%s", name, m.Kind, m.APIVersion, doc)
			}
		}
	}
	return s
}

func renderVariant(t *testing.T, variant string) map[string]string {
	t.Helper()
	files, err := render(t, over(sample(t), parseValues(t, variant)))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

var components = []string{"api", "consumer", "gateway", "relay", "timer"}

func TestEveryVariantIsWhole(t *testing.T) {
	for name, variant := range variants {
		t.Run(name, func(t *testing.T) {
			s := decode(t, renderVariant(t, variant))
			for _, c := range components {
				d := s.deployments["floodgate-"+c]
				if d == nil {
					t.Fatalf("there is no Deployment of %s", c)
				}
				s.deployment(c, d)
			}
			if len(s.deployments) != len(components) || len(s.jobs) != 1 {
				t.Errorf("got %d Deployments and %d Jobs", len(s.deployments), len(s.jobs))
			}
			for _, j := range s.jobs {
				s.pod(j.Spec.Template)
				if got := strings.Join(j.Spec.Template.Spec.Containers[0].Command, " "); got != "backend migrate -config /etc/floodgate/backend.yaml" {
					t.Errorf("the Job runs %q", got)
				}
				for _, o := range []metav1.ObjectMeta{j.ObjectMeta, s.configs[j.Name].ObjectMeta} {
					if o.Annotations["helm.sh/hook"] != "pre-install,pre-upgrade" {
						t.Errorf("%s is no hook: %v", o.Name, o.Annotations)
					}
				}
			}
			s.checkServices()
			s.checkScalers()
			if strings.Contains(name, "no policies") {
				if len(s.policies) > 0 {
					t.Errorf("got policies: %v", s.policies)
				}
			} else {
				s.checkPolicies()
			}
		})
	}
}

func (s *system) deployment(c string, d *appsv1.Deployment) {
	t, spec := s.t, d.Spec.Template.Spec
	s.pod(d.Spec.Template)
	if !s.selects(d.Spec.Selector, d.Spec.Template.Labels) {
		t.Errorf("%s: its selector %v does not select its pods %v", c, d.Spec.Selector, d.Spec.Template.Labels)
	}
	container := spec.Containers[0]
	for name, p := range map[string]*corev1.Probe{"startup": container.StartupProbe, "liveness": container.LivenessProbe, "readiness": container.ReadinessProbe} {
		path := "/-/healthy"
		if name == "readiness" {
			path = "/-/ready"
		}
		if p == nil || p.HTTPGet == nil || p.HTTPGet.Path != path || p.HTTPGet.Port.String() != "ops" {
			t.Errorf("%s: the %s probe is %+v, want %s on port ops", c, name, p, path)
		}
	}
	want, port := "backend -config /etc/floodgate/backend.yaml -roles "+c, int32(9081)
	if c == "gateway" {
		want, port = "gateway -config /etc/floodgate/gateway.yaml", 8081
	}
	if got := strings.Join(container.Command, " "); got != want {
		t.Errorf("%s runs %q, want %q", c, got, want)
	}
	if !slices.ContainsFunc(container.Ports, func(p corev1.ContainerPort) bool { return p.Name == "ops" && p.ContainerPort == port }) {
		t.Errorf("%s: ports %v, want ops at %d", c, container.Ports, port)
	}
	if r := d.Spec.Strategy.RollingUpdate; r == nil || r.MaxUnavailable.IntValue() != 0 || r.MaxUnavailable == nil {
		t.Errorf("%s: an update takes pods away before others are there: %+v", c, d.Spec.Strategy)
	}
	if b := s.budgets[d.Name]; b == nil || !s.selects(b.Spec.Selector, d.Spec.Template.Labels) || b.Spec.MaxUnavailable.IntValue() != 1 {
		t.Errorf("%s: its disruption budget is %+v", c, b)
	}
	// A pod has longer than the process takes at most.
	file, takes := s.configs["floodgate-backend"].Data["backend.yaml"], 0
	if c == "gateway" {
		file = s.configs["floodgate-gateway"].Data["gateway.yaml"]
	}
	var config struct {
		Drain  metav1.Duration
		Server struct {
			Drain metav1.Duration
			Delay metav1.Duration `json:"shutdown_delay"`
		}
	}
	if err := yaml.Unmarshal([]byte(file), &config); err != nil {
		t.Fatal(err)
	}
	takes = int(config.Drain.Seconds() + config.Server.Drain.Seconds() + config.Server.Delay.Seconds())
	if l := container.Lifecycle; l != nil {
		takes += int(l.PreStop.Sleep.Seconds)
	}
	if grace := int(*spec.TerminationGracePeriodSeconds); grace <= takes+5 || grace > takes+30 {
		t.Errorf("%s: it may take %d s to end, and is given %d", c, takes, grace)
	}
	if c == "gateway" && config.Server.Delay.Duration == 0 || c == "api" && container.Lifecycle == nil {
		t.Errorf("%s ends before those who call it know", c)
	}
}

// pod checks what holds for every pod.
func (s *system) pod(p corev1.PodTemplateSpec) {
	t, spec := s.t, p.Spec
	if c := spec.SecurityContext; !*c.RunAsNonRoot || *c.RunAsUser == 0 || c.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("the pod may too much: %+v", c)
	}
	if *spec.AutomountServiceAccountToken || spec.HostNetwork || spec.HostPID || spec.HostIPC {
		t.Error("the pod has a token of the cluster, or is in its host's namespaces")
	}
	if len(spec.Containers) != 1 || len(spec.InitContainers) != 0 {
		t.Fatalf("containers: %v", spec.Containers)
	}
	c := spec.Containers[0]
	if x := c.SecurityContext; *x.AllowPrivilegeEscalation || !*x.ReadOnlyRootFilesystem || !slices.Equal(x.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(x.Capabilities.Add) > 0 {
		t.Errorf("%s may too much: %+v", c.Name, x)
	}
	if c.Resources.Limits.Memory().IsZero() || c.Resources.Requests.Memory().IsZero() || c.Resources.Requests.Cpu().IsZero() {
		t.Errorf("%s has no bound of memory, or no requests: %+v", c.Name, c.Resources)
	}
	if len(c.Env) > 0 || len(c.EnvFrom) != 1 || c.EnvFrom[0].SecretRef == nil || c.EnvFrom[0].SecretRef.Name == "" {
		t.Errorf("%s: its environment is %v %v, want one Secret", c.Name, c.Env, c.EnvFrom)
	}
	if secret := c.EnvFrom[0].SecretRef.Name; (secret == "floodgate-gateway") != (c.Name == "gateway") {
		t.Errorf("%s has the Secret %s", c.Name, secret)
	}
	if !strings.HasPrefix(c.Image, "registry.example/floodgate:") || strings.HasSuffix(c.Image, ":") {
		t.Errorf("%s: image %q", c.Name, c.Image)
	}
	mounted := map[string]string{}
	for _, m := range c.VolumeMounts {
		mounted[m.Name] = m.MountPath
		if !m.ReadOnly || m.SubPath != "" {
			t.Errorf("%s: mount %+v, want all of it, read-only", c.Name, m)
		}
	}
	for _, v := range spec.Volumes {
		if mounted[v.Name] == "" {
			t.Errorf("%s: the volume %s is not mounted", c.Name, v.Name)
		}
		delete(mounted, v.Name)
		switch {
		case v.ConfigMap != nil:
			if s.configs[v.ConfigMap.Name] == nil {
				t.Errorf("%s: there is no ConfigMap %s", c.Name, v.ConfigMap.Name)
			}
		case v.Secret == nil:
			t.Errorf("%s: volume %+v", c.Name, v)
		}
	}
	if len(mounted) > 0 {
		t.Errorf("%s mounts what is no volume: %v", c.Name, mounted)
	}
}

func (s *system) selects(selector *metav1.LabelSelector, pod map[string]string) bool {
	s.t.Helper()
	sel, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		s.t.Fatal(err)
	}
	return !sel.Empty() && sel.Matches(labels.Set(pod))
}

// Each Service sends to a port that its pods have, and to the components that it is for.
func (s *system) checkServices() {
	want := map[string][]string{
		"floodgate-gateway": {"gateway"}, "floodgate-gateway-ops": {"gateway"}, "floodgate-backend": {"api"}, "floodgate-admin": {"api"},
		"floodgate-metrics": components,
	}
	for name, v := range s.services {
		var to []string
		for _, c := range components {
			pod := s.deployments["floodgate-"+c].Spec.Template
			if !labels.SelectorFromSet(v.Spec.Selector).Matches(labels.Set(pod.Labels)) {
				continue
			}
			to = append(to, c)
			for _, p := range v.Spec.Ports {
				if !slices.ContainsFunc(pod.Spec.Containers[0].Ports, func(q corev1.ContainerPort) bool { return q.Name == p.TargetPort.String() }) {
					s.t.Errorf("Service %s: %s has no port %s", name, c, p.TargetPort.String())
				}
			}
		}
		if !slices.Equal(to, want[name]) {
			s.t.Errorf("Service %s: it sends to %v, want %v", name, to, want[name])
		}
		if v.Spec.Type != "" && v.Spec.Type != corev1.ServiceTypeClusterIP && name != "floodgate-gateway" {
			s.t.Errorf("Service %s is a %s: only the gateway's public port leaves the cluster", name, v.Spec.Type)
		}
	}
	for _, m := range s.monitors {
		if v := s.services["floodgate-metrics"]; v == nil || !s.selects(&m.Spec.Selector, v.Labels) || v.Labels[m.Spec.JobLabel] != "floodgate" || m.Spec.Endpoints[0].Port != v.Spec.Ports[0].Name {
			s.t.Errorf("the ServiceMonitor %+v finds no Service: %+v", m.Spec, v)
		}
	}
}

// Where a scaler decides, the Deployment says no number, or each upgrade would undo it.
func (s *system) checkScalers() {
	for name, d := range s.deployments {
		h := s.scalers[name]
		if (h == nil) == (d.Spec.Replicas == nil) {
			s.t.Errorf("%s: scaler %v, replicas %v", name, h, d.Spec.Replicas)
		}
		if h != nil && (h.Spec.ScaleTargetRef.Name != name || h.Spec.ScaleTargetRef.Kind != "Deployment" || *h.Spec.MinReplicas > h.Spec.MaxReplicas) {
			s.t.Errorf("%s: scaler %+v", name, h.Spec)
		}
	}
}

// Of each pod's listeners, others reach the public one; the internal one the gateways alone; that for operators nobody but those of the
// values. Nothing connects to what is not named.
func (s *system) checkPolicies() {
	t := s.t
	pods := map[string]corev1.PodTemplateSpec{}
	for _, c := range components {
		pods[c] = s.deployments["floodgate-"+c].Spec.Template
	}
	for _, j := range s.jobs {
		pods["migrate"] = j.Spec.Template
	}
	for c, pod := range pods {
		var of []*networkingv1.NetworkPolicy
		for _, p := range s.policies {
			if s.selects(&p.Spec.PodSelector, pod.Labels) {
				of = append(of, p)
			}
		}
		if len(of) != 1 || len(of[0].Spec.PolicyTypes) != 2 {
			t.Fatalf("%s: got %d policies, want one of both directions: %v", c, len(of), of)
		}
		for _, in := range of[0].Spec.Ingress {
			if len(in.Ports) != 1 {
				t.Errorf("%s: ingress to %v, want one port for each rule", c, in.Ports)
				continue
			}
			switch port := in.Ports[0].Port.String(); port {
			case "public":
				if c != "gateway" {
					t.Errorf("%s has a public port", c)
				}
			case "internal":
				if c != "api" || len(in.From) != 1 || in.From[0].NamespaceSelector != nil || !s.selects(in.From[0].PodSelector, pods["gateway"].Labels) || s.selects(in.From[0].PodSelector, pods["relay"].Labels) {
					t.Errorf("%s: the internal port is open to %+v, want gateways alone", c, in.From)
				}
			case "ops":
				for _, from := range in.From {
					if from.NamespaceSelector == nil || len(from.NamespaceSelector.MatchLabels) == 0 {
						t.Errorf("%s: the operators' port is open to %+v", c, from)
					}
				}
				if len(in.From) == 0 {
					t.Errorf("%s: the operators' port is open to everybody", c)
				}
			default:
				t.Errorf("%s: ingress to %s", c, port)
			}
		}
		toBackend := false
		for _, out := range of[0].Spec.Egress {
			if len(out.Ports) == 0 {
				t.Errorf("%s may connect to any port of %v", c, out.To)
			}
			if len(out.To) == 1 && out.To[0].PodSelector != nil && s.selects(out.To[0].PodSelector, pods["api"].Labels) {
				toBackend = true
			}
		}
		if toBackend != (c == "gateway") {
			t.Errorf("%s may connect to the backend: %v", c, toBackend)
		}
	}
}

// What is missing is named, each by itself.
func TestAMissingValueIsNamed(t *testing.T) {
	for name, without := range map[string]string{
		"image.repository":              `image: {repository: ""}`,
		"gateway.secretName":            `gateway: {secretName: ""}`,
		"gateway.config.identity":       `gateway: {config: {identity: null}}`,
		"backend.secretName":            `backend: {secretName: ""}`,
		"backend.config.redis.addrs":    `backend: {config: {redis: {addrs: null}}}`,
		"networkPolicy.stores":          `networkPolicy: {stores: []}`,
		"gateway.autoscaling.max":       `gateway: {autoscaling: {enabled: true, min: 1, cpu: 50}}`,
		"backend.roles.api.autoscaling": `backend: {roles: {api: {autoscaling: {enabled: true, min: 1, max: 2}}}}`,
		"autoscaling.metric.name":       `gateway: {autoscaling: {enabled: true, min: 1, max: 2, cpu: 50, metric: {averageValue: 5}}}`,
	} {
		if _, err := render(t, over(sample(t), parseValues(t, without))); err == nil || !strings.Contains(err.Error(), name+":") && !strings.Contains(err.Error(), name+".") {
			t.Errorf("without %s: got %v, want an error that names it", name, err)
		}
	}
}

// What the chart would not follow is refused.
func TestAWrongValueIsNamed(t *testing.T) {
	for name, values := range map[string]string{
		"nonsense":                             `gateway: {nonsense: 1}`,
		"replicas":                             `gateway: {replicas: two}`,
		"type":                                 `gateway: {service: {type: Balancer}}`,
		"roles":                                `backend: {roles: {baker: {replicas: 1}}}`,
		"gateway.config.server.drain":          `gateway: {config: {server: {drain: 5s}}}`,
		"gateway.config.server.shutdown_delay": `gateway: {config: {server: {shutdown_delay: 5s}}}`,
		"backend.config.drain":                 `backend: {config: {drain: 5s}}`,
		"password":                             `backend: {password: hunter2}`,
	} {
		if _, err := render(t, over(sample(t), parseValues(t, values))); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v, want an error that names it", values, err)
		}
	}
}

// A running backend is restarted by a change of its file, a gateway is not: it reads the file again.
func TestAChangedFile(t *testing.T) {
	before := decode(t, renderVariant(t, ""))
	after := decode(t, renderVariant(t, `{gateway: {config: {limits: {order: {rate: 1, burst: 1}}}}, backend: {config: {orders: {max_queued: 7}}}}`))
	for _, c := range components {
		was, is := before.deployments["floodgate-"+c].Spec.Template, after.deployments["floodgate-"+c].Spec.Template
		if same := maps.Equal(was.Annotations, is.Annotations); same != (c == "gateway") {
			t.Errorf("%s: annotations %v and %v", c, was.Annotations, is.Annotations)
		}
	}
}

// deploy/kubernetes is the chart with kubernetes-values.yaml; testdata has the configurations with TLS, which e2e checks.
func TestManifestsAreTheCharts(t *testing.T) {
	want := map[string]string{"testdata/tls-config.yaml": renderVariant(t, variants["mutual tls"])["config.yaml"]}
	for name, text := range renderVariant(t, "") {
		if docs := documents(text); len(docs) > 0 {
			want["kubernetes/"+name] = fmt.Sprintf("# Made by make manifests from deploy/chart and deploy/kubernetes-values.yaml.\n%s\n", strings.Trim(strings.Join(docs, "\n---"), "\n"))
		}
	}
	if *write {
		for name, text := range want {
			os.MkdirAll(filepath.Dir(name), 0o755)
			if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, text := range want {
		if got, err := os.ReadFile(name); err != nil || string(got) != text {
			t.Errorf("%s is not what the chart makes (%v): make manifests", name, err)
		}
	}
	there, err := filepath.Glob("kubernetes/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range there {
		if want[name] == "" {
			t.Errorf("%s is not what the chart makes: remove it", name)
		}
	}
}

// The chart has the alerts of configs/alerts.yml, to the byte: Prometheus's own templates in them are not Helm's.
func TestTheChartHasTheAlerts(t *testing.T) {
	want, err := os.ReadFile("../configs/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile("chart/alerts.yml"); err != nil || string(got) != string(want) {
		t.Errorf("deploy/chart/alerts.yml is not configs/alerts.yml (%v): make manifests", err)
	}
	var alerts struct{ Groups []any }
	if err := yaml.Unmarshal(want, &alerts); err != nil {
		t.Fatal(err)
	}
	rules := decode(t, renderVariant(t, variants["monitoring"])).rules["floodgate"]
	if rules == nil || len(rules.Spec.Groups) == 0 || len(rules.Spec.Groups) != len(alerts.Groups) {
		t.Errorf("the PrometheusRule has other groups than configs/alerts.yml: %+v", rules)
	}
}
