{{/* The first part of all names. Without dots: names of pods become names of nodes and of replicas. */}}
{{- define "elasticflow.name" -}}
{{- $release := ternary .Release.Name (printf "%s-elasticflow" .Release.Name) (contains "elasticflow" .Release.Name) -}}
{{- .Values.fullnameOverride | default $release | replace "." "-" | trunc 32 | trimSuffix "-" -}}
{{- end }}

{{/* Labels of a component, (dict "root" $ "component" NAME). */}}
{{- define "elasticflow.selector" -}}
app.kubernetes.io/name: elasticflow
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "elasticflow.labels" -}}
{{ include "elasticflow.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
{{- end }}

{{/* Image, (dict "root" $ "image" VALUES). */}}
{{- define "elasticflow.image" -}}
image: {{ printf "%s:%s" .image.repository (.image.tag | default .root.Chart.AppVersion) | quote }}
imagePullPolicy: {{ .image.pullPolicy }}
{{- end }}

{{- define "elasticflow.natsName" -}}
{{- $release := ternary .Release.Name (printf "%s-nats" .Release.Name) (contains "nats" .Release.Name) -}}
{{- .Values.nats.fullnameOverride | default $release | trunc 63 | trimSuffix "-" -}}
{{- end }}

{{/* NATS_URL: the addresses of all servers. With a token, Kubernetes puts it in the place of $(NATS_TOKEN). */}}
{{- define "elasticflow.natsUrl" -}}
{{- $servers := .Values.natsServers -}}
{{- if .Values.nats.enabled -}}
{{- if or .Values.keys.enabled .Values.natsServers }}{{ fail "keys.enabled and natsServers need nats.enabled=false" }}{{ end -}}
{{- $servers = list (printf "%s:4222" (include "elasticflow.natsName" .)) -}}
{{- end -}}
{{- if not $servers }}{{ fail "set natsServers, or nats.enabled=true" }}{{ end -}}
{{- $start := ternary "nats://" "nats://$(NATS_TOKEN)@" .Values.keys.enabled -}}
{{- $urls := list -}}
{{- range $servers }}{{ $urls = append $urls (print $start .) }}{{ end -}}
{{- join "," $urls -}}
{{- end }}

{{/* Variables of every process, (dict "root" $ "seed" NAME-OF-ITS-KEY). */}}
{{- define "elasticflow.environment" -}}
{{- if not .root.Values.keys.enabled }}
- name: NATS_TOKEN
  valueFrom: {secretKeyRef: {name: {{ .root.Values.global.elasticflowSecret }}, key: NATS_TOKEN}}
{{- end }}
- {name: NATS_URL, value: {{ include "elasticflow.natsUrl" .root | quote }}}
{{- if .root.Values.keys.enabled }}
- {name: EF_NATS_CA, value: /run/elasticflow/ca.pem}
- {name: EF_NATS_CREDS, value: {{ printf "/run/elasticflow/%s.seed" .seed | quote }}}
{{- end }}
- {name: EF_POOL, value: {{ .root.Values.pool | quote }}}
- {name: EF_REPLICAS, value: {{ .root.Values.streamReplicas | quote }}}
- name: EF_INSTANCE    # the default is a part of a long host name, and may be that of another replica
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- {name: EF_METRICS_HOST, value: 0.0.0.0}
- {name: EF_METRICS_PORT, value: "9100"}
{{- end }}

{{/* Further variables, of a map. In Helm a number of a map is a float, which `quote` would write as 6.8e+10. */}}
{{- define "elasticflow.variables" -}}
{{- range $name, $value := . }}
- {name: {{ $name }}, value: {{ ternary $value (toJson $value) (kindIs "string" $value) | quote }}}
{{- end }}
{{- end }}

{{/* The rights of every pod: those of the user of the images, who owns what it writes to volumes. */}}
{{- define "elasticflow.podRights" -}}
securityContext: {runAsNonRoot: true, runAsUser: 10001, fsGroup: 10001, fsGroupChangePolicy: OnRootMismatch}
automountServiceAccountToken: false    # jobs run in pods of nodes, and must not speak to the cluster
enableServiceLinks: false
{{- end }}

{{- define "elasticflow.containerRights" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
{{- end }}

{{/* Where pods run, and what users add to them: of values. */}}
{{- define "elasticflow.placement" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* /healthz fails without NATS, while workers train on: then no traffic, and no restart. Before it has reached NATS, a
process serves no page. */}}
{{- define "elasticflow.probes" -}}
startupProbe:
  httpGet: {path: /metrics, port: metrics}
  periodSeconds: 5
  failureThreshold: 720
livenessProbe:
  httpGet: {path: /metrics, port: metrics}
  timeoutSeconds: 10
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /healthz, port: metrics}
  timeoutSeconds: 5
{{- end }}

{{/* Copies keys from a secret, (dict "root" $ "image" VALUES "files" NAMES). A file of a secret's volume can be read by its
group, which processes refuse. */}}
{{- define "elasticflow.keysContainer" -}}
- name: keys
  {{- include "elasticflow.image" . | nindent 2 }}
  command:
    - sh
    - -ec
    - 'cd /keys; for file in {{ .files }}; do if test -f "$file"; then install -m 600 "$file" /run/elasticflow; fi; done'
  {{- if contains "EF_NODE_ID" .files }}
  env:
    - name: EF_NODE_ID
      valueFrom: {fieldRef: {fieldPath: metadata.name}}
  {{- end }}
  securityContext: {{- include "elasticflow.containerRights" . | nindent 4 }}
  volumeMounts:
    - {name: keys, mountPath: /keys, readOnly: true}
    - {name: own-keys, mountPath: /run/elasticflow}
{{- end }}

{{- define "elasticflow.keysVolumes" -}}
- name: keys
  secret: {secretName: {{ . }}, defaultMode: 0440}
- name: own-keys
  emptyDir: {medium: Memory, sizeLimit: 1Mi}
{{- end }}

{{- define "elasticflow.claim" -}}
{{- .Values.data.existingClaim | default (include "elasticflow.name" .) -}}
{{- end }}
