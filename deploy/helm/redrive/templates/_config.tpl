{{/* What no schema can say of values that depend on each other. */}}
{{- define "redrive.check" -}}
{{- $secrets := .Values.secrets }}
{{- if not (or .Values.broker.url $secrets.brokerURL.name) }}
{{- fail "where is RabbitMQ? Set broker.url, or secrets.brokerURL" }}
{{- end }}
{{- if and (eq .Values.store.kind "redis") (not (or .Values.store.redis.url $secrets.redisURL.name)) }}
{{- fail "where is Redis or Valkey? Set store.redis.url or secrets.redisURL, or store.kind: disk" }}
{{- end }}
{{- if eq (empty .Values.tls.secret) (not .Values.tls.behindProxy) }}
{{- fail "set one of tls.secret (the pods speak TLS) and tls.behindProxy: true (an ingress or mesh does, and nobody else reaches them)" }}
{{- end }}
{{- if and .Values.ingress.enabled (not .Values.ingress.host) }}
{{- fail "which name is the page's? Set ingress.host" }}
{{- end }}
{{- if and .Values.serviceMonitor.enabled (not .Values.serviceMonitor.token.name) (ne (get .Values.config.auth "metrics") "open") }}
{{- fail "Prometheus may not see the metrics: set serviceMonitor.token.name to a Secret with a viewer's token, or config.auth.metrics: open" }}
{{- end }}
{{- end }}

{{/* The config file without what running pods take up by themselves. */}}
{{- define "redrive.fixed" -}}
{{- $store := dict }}
{{- if eq .Values.store.kind "redis" }}
{{- $redis := deepCopy .Values.store.redis }}
{{- if .Values.store.redisTLS.secret }}
{{- $tls := dict "ca" "/etc/redrive-redis-tls/ca.crt" }}
{{- if .Values.store.redisTLS.clientCertificate }}
{{- $tls = merge $tls (dict "cert" "/etc/redrive-redis-tls/tls.crt" "key" "/etc/redrive-redis-tls/tls.key") }}
{{- end }}
{{- $_ := set $redis "tls" $tls }}
{{- end }}
{{- $_ := set $store "redis" $redis }}
{{- else }}
{{- $_ := set $store "disk" "/var/lib/redrive/data" }}
{{- end }}
{{- range $key := list "reserve" "restorable" }}
{{- with get $.Values.store $key }}
{{- $_ := set $store $key . }}
{{- end }}
{{- end }}
{{- $fixed := dict "store" $store "listen" "0.0.0.0:8250" "auth" .Values.config.auth }}
{{- with .Values.broker }}
{{- $_ := set $fixed "broker" . }}
{{- end }}
{{- if .Values.tls.secret }}
{{- $_ := set $fixed "tls" (dict "cert" "/etc/redrive-tls/tls.crt" "key" "/etc/redrive-tls/tls.key") }}
{{- else }}
{{- $_ := set $fixed "tls" "behind-proxy" }}
{{- end }}
{{- with .Values.config.base_path }}
{{- $_ := set $fixed "base_path" . }}
{{- end }}
{{- if .Values.config.read_only }}
{{- $_ := set $fixed "read_only" true }}
{{- end }}
{{- toYaml $fixed }}
{{- end }}
