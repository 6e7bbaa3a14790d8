{{- define "ranker.name" -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "ranker.selector" -}}
app.kubernetes.io/name: dselect-ranker
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "ranker.labels" -}}
{{ include "ranker.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "ranker.claim" -}}
{{ .Values.repository.claim | default (printf "%s-repository" (include "ranker.name" .)) }}
{{- end }}

{{/* Pod security settings: a non-root user without service account token. */}}
{{- define "ranker.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "ranker.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* Container settings of every training pod. */}}
{{- define "ranker.training" -}}
image: "{{ .Values.training.image.repository }}:{{ .Values.training.image.tag | default .Chart.AppVersion }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{ include "ranker.container" . }}
env:
  - {name: HOME, value: /tmp}
volumeMounts:
  - {name: training, mountPath: /training}
  - {name: repository, mountPath: /repository}
  - {name: tmp, mountPath: /tmp}
  - {name: shm, mountPath: /dev/shm}
{{- end }}

{{- define "ranker.trainingVolumes" -}}
volumes:
  - name: training
    persistentVolumeClaim: {claimName: {{ .Values.training.claim }}}
  - name: repository
    persistentVolumeClaim: {claimName: {{ include "ranker.claim" . }}}
  - {name: tmp, emptyDir: {}}
  - {name: shm, emptyDir: {medium: Memory}}  # Ranks exchange tensors through /dev/shm.
{{- end }}
