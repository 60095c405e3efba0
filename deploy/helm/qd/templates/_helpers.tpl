{{- define "qd.fullname" -}}
{{- ternary .Release.Name (printf "%s-qd" .Release.Name) (contains "qd" .Release.Name) | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "qd.fit" -}}
{{- . | lower | regexFind "[a-z0-9].*" | trunc 40 | replace "_" "-" | replace "." "-" | trimSuffix "-" -}}
{{- end }}

{{- /* Labels that select pods. dict root component pool */ -}}
{{- define "qd.selector" -}}
app.kubernetes.io/name: qd
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- with .pool }}
qd-pool: {{ include "qd.fit" . }}
{{- end }}
{{- end }}

{{- define "qd.labels" -}}
{{ include "qd.selector" . }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{- /* A Deployment from `template:` on. dict root component pool command environ probes port resources grace secret */ -}}
{{- define "qd.template" -}}
{{- $v := .root.Values -}}
template:
  metadata:
    labels:
      {{- include "qd.labels" . | nindent 6 }}
    {{- if or $v.podAnnotations $v.config }}
    annotations:
      {{- if $v.config }}
      checksum/config: {{ include (print $.root.Template.BasePath "/config.yaml") .root | sha256sum }}
      {{- end }}
      {{- with $v.podAnnotations }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    {{- end }}
  spec:
    {{- with .grace }}
    # --stop-timeout + 10: at its own deadline qd ends running jobs and hands them back.
    terminationGracePeriodSeconds: {{ . }}
    {{- end }}
    automountServiceAccountToken: false
    enableServiceLinks: false # no QD_..._PORT variables of services
    {{- with $v.serviceAccountName }}
    serviceAccountName: {{ . }}
    {{- end }}
    {{- with $v.imagePullSecrets }}
    imagePullSecrets:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    securityContext:
      {{- toYaml $v.podSecurityContext | nindent 6 }}
    containers:
      - name: qd
        image: {{ printf "%s:%s" (required "image.repository is required" $v.image.repository) (required "image.tag is required" $v.image.tag) | quote }}
        imagePullPolicy: {{ $v.image.pullPolicy }}
        command: {{ toJson .command }}
        env:
          {{- if $v.url.secret }}
          - name: {{ $v.url.variable }}_FILE
            value: /run/secrets/qd/{{ $v.url.key }}
          {{- end }}
          {{- range $name, $value := .environ }}
          - name: {{ $name }}
            value: {{ $value | quote }}
          {{- end }}
          {{- with $v.env }}
          {{- toYaml . | nindent 10 }}
          {{- end }}
        {{- with $v.envFrom }}
        envFrom:
          {{- toYaml . | nindent 10 }}
        {{- end }}
        {{- with .port }}
        ports:
          - name: http
            containerPort: {{ . }}
        {{- end }}
        {{- .probes | nindent 8 }}
        resources:
          {{- toYaml .resources | nindent 10 }}
        securityContext:
          {{- toYaml $v.securityContext | nindent 10 }}
        volumeMounts:
          {{- if $v.url.secret }}
          - {name: secrets, mountPath: /run/secrets/qd, readOnly: true}
          {{- end }}
          - {name: tmp, mountPath: /tmp}
          {{- if .secret }}
          - {name: users, mountPath: /run/secrets/dashboard, readOnly: true}
          {{- end }}
          {{- if $v.config }}
          - {name: config, mountPath: {{ $v.configPath }}, subPath: qd.toml, readOnly: true}
          {{- end }}
          {{- with $v.volumeMounts }}
          {{- toYaml . | nindent 10 }}
          {{- end }}
    volumes:
      {{- with $v.url.secret }}
      - name: secrets
        secret: {secretName: {{ . }}, defaultMode: 0440}
      {{- end }}
      - {name: tmp, emptyDir: {}}
      {{- with .secret }}
      - name: users
        secret: {secretName: {{ . }}, defaultMode: 0440}
      {{- end }}
      {{- if $v.config }}
      - name: config
        configMap: {name: {{ include "qd.fullname" .root }}}
      {{- end }}
      {{- with $v.volumes }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    {{- with $v.nodeSelector }}
    nodeSelector:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with $v.affinity }}
    affinity:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with $v.tolerations }}
    tolerations:
      {{- toYaml . | nindent 6 }}
    {{- end }}
{{- end }}

{{- /* The master only: an unreachable server restarts no container. */ -}}
{{- define "qd.workerProbes" -}}
livenessProbe:
  exec: {command: ["qd", "health", "--live"]}
  initialDelaySeconds: 60
  periodSeconds: 30
  timeoutSeconds: 10
readinessProbe:
  exec: {command: ["qd", "health", "--live"]}
  periodSeconds: 30
  timeoutSeconds: 10
{{- end }}

{{- /* dict path host */ -}}
{{- define "qd.httpProbes" -}}
{{- range list "livenessProbe" "readinessProbe" }}
{{ . }}:
  httpGet:
    path: {{ $.path }}
    port: http
    {{- with $.host }}
    httpHeaders: [{name: Host, value: {{ . }}}]
    {{- end }}
  periodSeconds: 30
  timeoutSeconds: 10
{{- end }}
{{- end }}

{{- define "qd.pools" -}}
{{ .Values.pools | default (dict "default" (dict)) | toJson }}
{{- end }}
