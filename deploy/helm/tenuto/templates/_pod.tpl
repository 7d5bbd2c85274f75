{{/* The parts that the pods of all processes share. */}}

{{- define "tenuto.variable" -}}
- name: {{ .name }}
  value: {{ if kindIs "slice" .value }}{{ join "," .value | quote }}
  {{- else if kindIs "float64" .value }}{{ if eq (floor .value) .value }}{{ printf "%.0f" .value | quote }}{{ else }}{{ .value | quote }}{{ end }}
  {{- else }}{{ .value | toString | quote }}
  {{- end }}
{{- end }}

{{/* Environment of a process. Takes root, database and readonlyDatabase (secrets; the latter optional), variables (of the
chart), settings (of the values) and executor (of a worker set with a cluster). */}}
{{- define "tenuto.environment" -}}
- name: TENUTO_DATABASE
  valueFrom:
    secretKeyRef:
      name: {{ .database.secretName }}
      key: {{ .database.secretKey }}
{{- with .readonlyDatabase }}
{{- if .secretName }}
- name: TENUTO_DATABASE_READONLY
  valueFrom:
    secretKeyRef:
      name: {{ .secretName }}
      key: {{ .secretKey }}
{{- end }}
{{- end }}
{{- with .executor }}
- name: TENUTO_WORKER_EXECUTOR_ADDRESS
  valueFrom:
    secretKeyRef:
      name: {{ required "workers.*.executor.address.secretName: name the secret with the address of the cluster" .address.secretName }}
      key: {{ .address.secretKey }}
- name: POD_IP
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
{{- end }}
{{- $variables := dict "TENUTO_APP" .root.Values.app "TENUTO_HOME" "/var/lib/tenuto" "TENUTO_LOG_FORMAT" "json" }}
{{- if .root.Values.masterKey.secretName }}
{{- $_ := set $variables "TENUTO_MASTER_KEY_FILE" "/run/secrets/tenuto/master.key" }}
{{- end }}
{{- range $name, $value := .root.Values.settings }}
{{- $_ := set $variables (printf "TENUTO_%s" (upper $name)) $value }}
{{- end }}
{{- range $name, $value := .settings }}
{{- $_ := set $variables (printf "TENUTO_%s" (upper $name)) $value }}
{{- end }}
{{- /* Last, because probes, services and termination depend on them. */}}
{{- $variables = mergeOverwrite $variables .variables }}
{{- range $name, $value := $variables }}
{{ include "tenuto.variable" (dict "name" $name "value" $value) }}
{{- end }}
{{- with .root.Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Takes root, component (name of the container), args, environment, resources, ports and probes (both optional). */}}
{{- define "tenuto.podSpec" -}}
{{- $values := .root.Values -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with $values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- toYaml $values.podSecurityContext | nindent 2 }}
containers:
  - name: {{ .component }}
    image: {{ printf "%s:%s" $values.image.repository ($values.image.tag | default .root.Chart.AppVersion) | quote }}
    imagePullPolicy: {{ $values.image.pullPolicy }}
    args: {{ toJson .args }}
    env:
      {{- .environment | nindent 6 }}
    {{- with .ports }}
    ports:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with .probes }}
    {{- . | nindent 4 }}
    {{- end }}
    resources:
      {{- toYaml .resources | nindent 6 }}
    securityContext:
      {{- toYaml $values.securityContext | nindent 6 }}
    volumeMounts:
      - name: home
        mountPath: /var/lib/tenuto
      - name: tmp
        mountPath: /tmp
      {{- if $values.masterKey.secretName }}
      - name: master-key
        mountPath: /run/secrets/tenuto
        readOnly: true
      {{- end }}
      {{- with $values.extraVolumeMounts }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
volumes:
  # Lasts as long as the pod: a restarted container takes back its tasks at once.
  - name: home
    emptyDir:
      sizeLimit: {{ $values.home.sizeLimit }}
  - name: tmp
    emptyDir:
      sizeLimit: {{ $values.tmp.sizeLimit }}
  {{- with $values.masterKey }}
  {{- if .secretName }}
  - name: master-key
    secret:
      secretName: {{ .secretName }}
      # Tenuto refuses a key that everybody may read. The group is fsGroup.
      defaultMode: 0440
      items:
        - key: {{ .secretKey }}
          path: master.key
  {{- end }}
  {{- end }}
  {{- with $values.extraVolumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* Liveness and readiness over HTTP. Takes port and exclude (readiness checks that concern other processes). */}}
{{- define "tenuto.probes" -}}
{{- $request := dict "port" .port "httpHeaders" (list (dict "name" "Host" "value" "localhost")) -}}
startupProbe:
  httpGet:
    path: /healthz
    {{- toYaml $request | nindent 4 }}
  periodSeconds: 2
  timeoutSeconds: 5
  failureThreshold: 60
livenessProbe:
  httpGet:
    path: /healthz
    {{- toYaml $request | nindent 4 }}
  periodSeconds: 15
  timeoutSeconds: 5
  failureThreshold: 4
readinessProbe:
  httpGet:
    path: {{ printf "/readyz?exclude=%s" (join "&exclude=" .exclude) | quote }}
    {{- toYaml $request | nindent 4 }}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
{{- end }}

{{/* Placement of the pods of a component. Takes root, component and values (of the component). */}}
{{- define "tenuto.placement" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "tenuto.selectorLabels" .root | nindent 8 }}
        app.kubernetes.io/component: {{ .component }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{/* Metadata of the pods of a component. Takes root, component, values (of the component) and has_metrics. */}}
{{- define "tenuto.podMetadata" -}}
labels:
  {{- include "tenuto.labels" .root | nindent 2 }}
  app.kubernetes.io/component: {{ .component }}
  {{- if .has_metrics }}
  tenuto/metrics: "true"
  {{- end }}
  {{- with .values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .values.podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Variables of the endpoint for probes and metrics. Pods of the cluster reach it; NetworkPolicy restricts them. */}}
{{- define "tenuto.metricsVariables" -}}
TENUTO_METRICS_PORT: {{ .Values.metrics.port }}
TENUTO_METRICS_HOST: 0.0.0.0
TENUTO_METRICS_PUBLIC: "true"
{{- end }}
