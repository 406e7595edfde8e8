{{/* The pods of Deployment and StatefulSet. */}}
{{- define "redrive.pod" -}}
{{- $redis := eq .Values.store.kind "redis" }}
{{- $scheme := empty .Values.tls.secret | ternary "HTTP" "HTTPS" }}
{{- $files := list
	(dict "from" .Values.secrets.brokerURL "file" "broker-url" "variable" "REDRIVE_BROKER_URL_FILE")
	(dict "from" .Values.secrets.brokerPassword "file" "broker-password" "variable" "REDRIVE_BROKER_PASSWORD_FILE")
	(dict "from" .Values.secrets.managementURL "file" "management-url" "variable" "REDRIVE_MANAGEMENT_URL_FILE") }}
{{- if $redis }}
{{- $files = concat $files (list
	(dict "from" .Values.secrets.redisURL "file" "redis-url" "variable" "REDRIVE_REDIS_URL_FILE")
	(dict "from" .Values.secrets.redisPassword "file" "redis-password" "variable" "REDRIVE_REDIS_PASSWORD_FILE")) }}
{{- end }}
{{- $mounted := list }}
{{- range $files }}{{ if .from.name }}{{ $mounted = append $mounted . }}{{ end }}{{ end }}
metadata:
  labels:
    {{- include "redrive.labels" . | nindent 4 }}
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    # Of what takes effect at the next start alone: a change of policies restarts nothing.
    redrive/config: {{ include "redrive.fixed" . | sha256sum }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "redrive.serviceAccount" . }}
  # It asks nothing of Kubernetes.
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    fsGroup: 65532
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile: {type: RuntimeDefault}
  terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  topologySpreadConstraints:
    {{- if .Values.topologySpreadConstraints }}
    {{- toYaml .Values.topologySpreadConstraints | nindent 4 }}
    {{- else }}
    {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
    - topologyKey: {{ . }}
      maxSkew: 1
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "redrive.selector" $ | nindent 10 }}
    {{- end }}
    {{- end }}
  containers:
    - name: redrive
      image: {{ .Values.image.repository }}{{ if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args:
        {{- concat (list "serve" "--config" "/etc/redrive/redrive.yaml" "--log" "json") .Values.extraArgs | toYaml | nindent 8 }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      ports:
        - {name: http, containerPort: 8250, protocol: TCP}
      env:
        {{- range $mounted }}
        - {name: {{ .variable }}, value: /run/secrets/redrive/{{ .file }}}
        {{- end }}
        # For `kubectl exec … redrive status`.
        - {name: REDRIVE_ADDRESS, value: "{{ lower $scheme }}://127.0.0.1:8250"}
        {{- with .Values.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with .Values.extraEnvFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      # It answers once the store is open, which takes longer after damage: counts and indexes
      # are made again then.
      startupProbe:
        httpGet: {path: /healthz, port: http, scheme: {{ $scheme }}}
        periodSeconds: 5
        failureThreshold: 60
      livenessProbe:
        httpGet: {path: /healthz, port: http, scheme: {{ $scheme }}}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 3
      readinessProbe:
        httpGet: {path: /readyz, port: http, scheme: {{ $scheme }}}
        periodSeconds: 5
        timeoutSeconds: 3
      resources:
        {{- toYaml .Values.resources | nindent 8 }}
      volumeMounts:
        - {name: config, mountPath: /etc/redrive, readOnly: true}
        {{- if $mounted }}
        - {name: secrets, mountPath: /run/secrets/redrive, readOnly: true}
        {{- end }}
        {{- if .Values.tls.secret }}
        - {name: tls, mountPath: /etc/redrive-tls, readOnly: true}
        {{- end }}
        {{- if and $redis .Values.store.redisTLS.secret }}
        - {name: redis-tls, mountPath: /etc/redrive-redis-tls, readOnly: true}
        {{- end }}
        {{- if not $redis }}
        - {name: data, mountPath: /var/lib/redrive}
        {{- end }}
        {{- with .Values.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: config
      configMap: {name: {{ include "redrive.fullname" . }}}
    {{- if $mounted }}
    - name: secrets
      projected:
        defaultMode: 0440
        sources:
          {{- range $mounted }}
          - secret:
              name: {{ .from.name }}
              items: [{key: {{ .from.key | quote }}, path: {{ .file }}}]
          {{- end }}
    {{- end }}
    {{- with .Values.tls.secret }}
    - name: tls
      secret: {secretName: {{ . }}, defaultMode: 0440}
    {{- end }}
    {{- if and $redis .Values.store.redisTLS.secret }}
    - name: redis-tls
      secret: {secretName: {{ .Values.store.redisTLS.secret }}, defaultMode: 0440}
    {{- end }}
    {{- if and (not $redis) .Values.store.disk.existingClaim }}
    - name: data
      persistentVolumeClaim: {claimName: {{ .Values.store.disk.existingClaim }}}
    {{- end }}
    {{- with .Values.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}
