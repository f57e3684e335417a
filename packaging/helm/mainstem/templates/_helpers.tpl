{{/* Names are cut so that -headless and -dashboards, and the hash that Kubernetes adds to a StatefulSet's, stay below 63 characters. */}}
{{- define "mainstem.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $given := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- default $given .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "mainstem.headless" -}}
{{ include "mainstem.fullname" . }}-headless
{{- end -}}

{{- define "mainstem.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ default (include "mainstem.fullname" .) .Values.serviceAccount.name }}
{{- else -}}
{{ default "default" .Values.serviceAccount.name }}
{{- end -}}
{{- end -}}

{{- define "mainstem.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ default $.Chart.AppVersion .tag }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Labels of the release, without the part that an object belongs to. */}}
{{- define "mainstem.release" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* What chooses the server's pods, and no others of the release. */}}
{{- define "mainstem.selector" -}}
{{ include "mainstem.release" . }}
app.kubernetes.io/component: server
{{- end -}}

{{/* Labels of all objects. */}}
{{- define "mainstem.labels" -}}
{{ include "mainstem.release" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* The name by which others reach the client service. */}}
{{- define "mainstem.host" -}}
{{ include "mainstem.fullname" . }}.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end -}}

{{/* What follows the name of a pod in its host name. */}}
{{- define "mainstem.podDomain" -}}
{{ include "mainstem.headless" . }}.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end -}}

{{- define "mainstem.advertised" -}}
{{- $host := default (include "mainstem.host" .) .Values.service.advertisedHost -}}
CLIENTS://{{ $host }}:{{ default .Values.service.port .Values.service.advertisedPort }}
{{- end -}}

{{/* What the listener of clients speaks. */}}
{{- define "mainstem.protocol" -}}
{{- if .Values.sasl.enabled }}SASL_SSL{{ else if .Values.tls.enabled }}SSL{{ else }}PLAINTEXT{{ end -}}
{{- end -}}

{{/* Whether a listener may do without encryption, or without authentication. Where none has to, the server refuses it. */}}
{{- define "mainstem.insecure" -}}
{{- $secure := or .Values.sasl.enabled (and .Values.tls.enabled (eq .Values.tls.clientAuth "required")) -}}
{{ not $secure }}
{{- end -}}

{{- define "mainstem.superUsers" -}}
{{- $users := .Values.authorization.superUsers -}}
{{- with .Values.sasl -}}
{{- if and .enabled .user.existingSecret }}{{ $users = append $users (printf "User:%s" .user.name) }}{{ end -}}
{{- end -}}
{{- if and .Values.cluster.enabled .Values.cluster.brokerPrincipal }}{{ $users = append $users .Values.cluster.brokerPrincipal }}{{ end -}}
{{ $users | uniq | join ";" }}
{{- end -}}

{{/* The text of a value. Helm reads numbers of some sources as floating ones, which it would print as 1e+09. */}}
{{- define "mainstem.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) }}{{ printf "%.0f" . }}{{ else }}{{ toString . }}{{ end -}}
{{- end -}}

{{/* The settings that are the same for all pods. Those of one pod, and secrets, are in its environment. */}}
{{- define "mainstem.toml" -}}
{{- $cluster := .Values.cluster -}}
{{- $protocol := include "mainstem.protocol" . -}}
{{- $settings := dict
  "listeners" "CLIENTS://0.0.0.0:9092"
  "listener.security.protocol.map" (printf "CLIENTS:%s" $protocol)
  "admin.listen" (ternary "0.0.0.0:9644" "127.0.0.1:9644" .Values.metrics.enabled)
-}}
{{- if $cluster.enabled -}}
{{- $_ := set $settings "listeners" "CLIENTS://0.0.0.0:9092,BROKERS://0.0.0.0:9094" -}}
{{- $between := ternary "SSL" "PLAINTEXT" .Values.tls.enabled -}}
{{- $_ := set $settings "listener.security.protocol.map" (printf "CLIENTS:%s,BROKERS:%s" $protocol $between) -}}
{{- $_ := set $settings "inter.broker.listener.name" "BROKERS" -}}
{{- $_ := set $settings "cluster.name" $cluster.name -}}
{{- $_ := set $settings "etcd.endpoints" (join "," $cluster.etcd.endpoints) -}}
{{- with $cluster.etcd.tls -}}
{{- if .existingSecret -}}
{{- $_ := set $settings "etcd.ssl.truststore.location" "/etc/mainstem/etcd/ca.crt" -}}
{{- if .clientCertificate -}}
{{- $_ := set $settings "etcd.ssl.certificate.location" "/etc/mainstem/etcd/tls.crt" -}}
{{- $_ := set $settings "etcd.ssl.key.location" "/etc/mainstem/etcd/tls.key" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if .Values.tls.enabled -}}
{{- $_ := set $settings "inter.broker.client.config" "/etc/mainstem/config/brokers.properties" -}}
{{- $_ := set $settings "listener.name.brokers.ssl.client.auth" "required" -}}
{{- end -}}
{{- else -}}
{{- $_ := set $settings "advertised.listeners" (include "mainstem.advertised" .) -}}
{{- end -}}
{{- with .Values.tls -}}
{{- if .enabled -}}
{{- $_ := set $settings "ssl.keystore.type" "PEM" -}}
{{- if .combinedKey -}}
{{- $_ := set $settings "ssl.keystore.location" (printf "/etc/mainstem/tls/%s" .combinedKey) -}}
{{- else -}}
{{- $_ := set $settings "ssl.keystore.key" "${file:/etc/mainstem/tls/tls.key}" -}}
{{- $_ := set $settings "ssl.keystore.certificate.chain" "${file:/etc/mainstem/tls/tls.crt}" -}}
{{- end -}}
{{- if or $cluster.enabled (ne .clientAuth "none") -}}
{{- $_ := set $settings "ssl.truststore.type" "PEM" -}}
{{- $_ := set $settings "ssl.truststore.location" "/etc/mainstem/tls/ca.crt" -}}
{{- end -}}
{{- $_ := set $settings "listener.name.clients.ssl.client.auth" .clientAuth -}}
{{- end -}}
{{- end -}}
{{- if .Values.sasl.enabled -}}
{{- $_ := set $settings "sasl.enabled.mechanisms" (join "," .Values.sasl.mechanisms) -}}
{{- end -}}
{{- if .Values.authorization.enabled -}}
{{- $_ := set $settings "authorizer.class.name" "org.apache.kafka.metadata.authorizer.StandardAuthorizer" -}}
{{- $_ := set $settings "super.users" (include "mainstem.superUsers" .) -}}
{{- end -}}
{{- with .Values.objectStore.url -}}
{{- $_ := set $settings "object.store" . -}}
{{- end -}}
{{- range $name, $value := merge $settings .Values.config }}
{{ $name | quote }} = {{ include "mainstem.text" $value | toRawJson }}
{{- end -}}
{{- end -}}

{{/* How brokers reach each other: with their own certificate. */}}
{{- define "mainstem.brokersProperties" -}}
security.protocol=SSL
ssl.truststore.type=PEM
ssl.truststore.location=/etc/mainstem/tls/ca.crt
ssl.keystore.type=PEM
ssl.keystore.location=/etc/mainstem/tls/{{ .Values.tls.combinedKey }}
{{- end -}}

{{/* A container of the chart: its image and what it may do. */}}
{{- define "mainstem.container" -}}
image: {{ include "mainstem.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  {{- toYaml .Values.securityContext | nindent 2 }}
{{- end -}}

{{/* A pod of the chart: who it is. */}}
{{- define "mainstem.pod" -}}
serviceAccountName: {{ include "mainstem.serviceAccount" . }}
automountServiceAccountToken: false
# Kubernetes would give the pod variables for each service of its namespace. Those of a service whose name begins with "mainstem-" look like
# settings (MAINSTEM_…), and the server does not start with settings that it does not know.
enableServiceLinks: false
securityContext:
  {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* What a Secret has, as files below /etc/mainstem. */}}
{{- define "mainstem.secretVolume" -}}
- name: {{ .name }}
  secret:
    secretName: {{ .secret }}
    defaultMode: 0440
{{- end -}}
