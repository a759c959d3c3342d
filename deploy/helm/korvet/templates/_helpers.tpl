{{- define "korvet.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "korvet.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: front-end
{{- end -}}

{{- define "korvet.valkey.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: valkey
{{- end -}}

{{- define "korvet.labels" -}}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- /* Whether the chart runs the Valkey: "true" or nothing. */ -}}
{{- define "korvet.ownValkey" -}}
{{- if not (or .Values.redis.existingSecret .Values.redis.url) -}}true{{- end -}}
{{- end -}}

{{- define "korvet.valkey.name" -}}
{{ include "korvet.name" . }}-valkey
{{- end -}}

{{- /* The Secret with Redis's URL, and the key in it. */ -}}
{{- define "korvet.redis.secret" -}}
name: {{ .Values.redis.existingSecret | default (printf "%s-redis" (include "korvet.name" .)) }}
key: {{ if .Values.redis.existingSecret }}{{ .Values.redis.key }}{{ else }}url{{ end }}
{{- end -}}

{{- /* The password of the chart's Valkey: the one given, else the one that is there, else a new one. */ -}}
{{- define "korvet.valkey.password" -}}
{{- $there := lookup "v1" "Secret" .Release.Namespace (include "korvet.valkey.name" .) -}}
{{- if .Values.valkey.password -}}
{{- .Values.valkey.password -}}
{{- else if $there -}}
{{- index $there.data "password" | b64dec -}}
{{- else -}}
{{- randAlphaNum 32 -}}
{{- end -}}
{{- end -}}

{{- define "korvet.console.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: console
{{- end -}}

{{- define "korvet.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "korvet.name" .) "default" .Values.serviceAccount.create) -}}
{{- end -}}

{{- /* What pods of korvet's image have in common. */ -}}
{{- define "korvet.pod" -}}
serviceAccountName: {{ include "korvet.serviceAccount" . }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile:
    type: RuntimeDefault
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "korvet.mounts" -}}
- name: config
  mountPath: /etc/korvet/korvet.toml
  subPath: korvet.toml
  readOnly: true
- name: tmp
  mountPath: /tmp
{{- range .Values.secrets }}
- name: secret-{{ .name }}
  mountPath: /etc/korvet/secrets/{{ .name }}
  readOnly: true
{{- end }}
{{- end -}}

{{- define "korvet.volumes" -}}
- name: config
  configMap:
    name: {{ include "korvet.name" . }}
- name: tmp
  emptyDir:
    sizeLimit: 64Mi
{{- range .Values.secrets }}
- name: secret-{{ .name }}
  secret:
    secretName: {{ .secretName }}
    defaultMode: 0440
{{- end }}
{{- end -}}
