{{- define "floodgate.name" -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- /* Labels of a component: (list $ "gateway"). */}}
{{- define "floodgate.labels" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: floodgate
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
app.kubernetes.io/version: {{ $root.Values.image.tag | default $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ $root.Chart.Name }}-{{ $root.Chart.Version }}
{{- end }}

{{- /* What selects a component's pods: (list $ "gateway"). */}}
{{- define "floodgate.selector" -}}
app.kubernetes.io/name: floodgate
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- /* What every pod has: (list $ "gateway" more), where more is added to the spec. */}}
{{- define "floodgate.pod" -}}
{{- $root := index . 0 -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 65534
  runAsGroup: 65534
  fsGroup: 65534
  seccompProfile: {type: RuntimeDefault}
{{- with $root.Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- if not (hasKey (index . 2) "topologySpreadConstraints") }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "floodgate.selector" . | nindent 8 }}
{{- end }}
{{- with index . 2 }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* What every container has: (list $ secretName resources). */}}
{{- define "floodgate.container" -}}
{{- $root := index . 0 -}}
image: {{ printf "%s:%s" (required "image.repository: which image is to run? deploy/Dockerfile builds it" $root.Values.image.repository) ($root.Values.image.tag | default $root.Chart.AppVersion) }}
imagePullPolicy: {{ $root.Values.image.pullPolicy }}
envFrom:
  - secretRef: {name: {{ index . 1 }}}
resources: {{- toYaml (index . 2) | nindent 2 }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- /* The probes of a container's port ops. */}}
{{- define "floodgate.probes" -}}
startupProbe:
  httpGet: {path: /-/healthy, port: ops}
  periodSeconds: 1
  failureThreshold: 120
livenessProbe:
  httpGet: {path: /-/healthy, port: ops}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /-/ready, port: ops}
  periodSeconds: 2
  timeoutSeconds: 2
{{- end }}

{{- define "floodgate.gatewaySecret" -}}
{{ required "gateway.secretName: name the Secret with FLOODGATE_SIGNING_KEY and FLOODGATE_OPS_TOKEN" .Values.gateway.secretName }}
{{- end }}

{{- define "floodgate.backendSecret" -}}
{{ required "backend.secretName: name the Secret with FLOODGATE_SIGNING_KEY, FLOODGATE_ADMIN_TOKEN, FLOODGATE_SESSION_KEY and what opens the stores" .Values.backend.secretName }}
{{- end }}

{{- /* Names under which the operators' listeners are asked: (list $ "gateway-ops"). */}}
{{- define "floodgate.hosts" -}}
{{- $root := index . 0 -}}
{{- $name := printf "%s-%s" (include "floodgate.name" $root) (index . 1) -}}
[{{ $name }}, {{ $name }}.{{ $root.Release.Namespace }}, {{ $name }}.{{ $root.Release.Namespace }}.svc, {{ $name }}.{{ $root.Release.Namespace }}.svc.cluster.local]
{{- end }}

{{- /* What the chart itself writes; the values go over it. */}}
{{- define "floodgate.gatewayBase" -}}
listen:
  public: 0.0.0.0:8080
  ops: 0.0.0.0:8081
  {{- if .Values.gateway.tls.secretName }}
  tls:
    certificates: [{certificate: /etc/floodgate-tls/public/tls.crt, key: /etc/floodgate-tls/public/tls.key}]
  {{- end }}
ops_token: ${FLOODGATE_OPS_TOKEN}
ops_hosts: {{ include "floodgate.hosts" (list . "gateway-ops") }}
backends: ["{{ if .Values.backend.tls.secretName }}https{{ else }}http{{ end }}://{{ include "floodgate.name" . }}-backend:9080"]
{{- if .Values.backend.tls.secretName }}
backend_tls:
  ca: /etc/floodgate-tls/backend/ca.crt
  {{- if .Values.backend.tls.clientSecretName }}
  certificate: /etc/floodgate-tls/client/tls.crt
  key: /etc/floodgate-tls/client/tls.key
  {{- end }}
{{- end }}
signing_key: {id: gw-1, secret: "${FLOODGATE_SIGNING_KEY}"}
server:
  shutdown_delay: {{ .Values.gateway.shutdownDelaySeconds }}s
  drain: {{ .Values.gateway.drainSeconds }}s
{{- end }}

{{- define "floodgate.gatewayConfig" -}}
{{- $v := .Values.gateway -}}
{{- $_ := required "gateway.config.identity: whose tokens are taken? See identity in configs/gateway.yaml" $v.config.identity -}}
{{- if hasKey ($v.config.server | default dict) "shutdown_delay" }}{{ fail "gateway.config.server.shutdown_delay: set gateway.shutdownDelaySeconds, which the pod's grace period follows" }}{{ end -}}
{{- if hasKey ($v.config.server | default dict) "drain" }}{{ fail "gateway.config.server.drain: set gateway.drainSeconds, which the pod's grace period follows" }}{{ end -}}
{{ toYaml (mergeOverwrite (include "floodgate.gatewayBase" . | fromYaml) (deepCopy $v.config)) }}
{{- end }}

{{- /* What the chart itself writes; the values go over it. */}}
{{- define "floodgate.backendBase" -}}
listen:
  internal: 0.0.0.0:9080
  admin: 0.0.0.0:9081
  {{- if .Values.backend.tls.secretName }}
  internal_tls:
    certificate: /etc/floodgate-tls/backend/tls.crt
    key: /etc/floodgate-tls/backend/tls.key
    {{- if .Values.backend.tls.clientSecretName }}
    client_ca: /etc/floodgate-tls/backend/ca.crt
    {{- end }}
  {{- end }}
admin_token: ${FLOODGATE_ADMIN_TOKEN}
admin_session_key: ${FLOODGATE_SESSION_KEY}
admin_hosts: {{ include "floodgate.hosts" (list . "admin") }}
signing_keys: [{id: gw-1, secret: "${FLOODGATE_SIGNING_KEY}"}]
redis: {password: "${REDIS_PASSWORD}"}
mysql: {dsn: "${MYSQL_DSN}"}
{{- if ne (dig "queue" "driver" "rabbitmq" .Values.backend.config) "redis-stream" }}
queue: {driver: rabbitmq, url: "${AMQP_URL}"}
{{- end }}
drain: {{ .Values.backend.drainSeconds }}s
{{- end }}

{{- define "floodgate.backendConfig" -}}
{{- $v := .Values.backend -}}
{{- $_ := required "backend.config.redis.addrs: where is Redis?" ($v.config.redis | default dict).addrs -}}
{{- if hasKey $v.config "drain" }}{{ fail "backend.config.drain: set backend.drainSeconds, which the pod's grace period follows" }}{{ end -}}
{{ toYaml (mergeOverwrite (include "floodgate.backendBase" . | fromYaml) (deepCopy $v.config)) }}
{{- end }}
