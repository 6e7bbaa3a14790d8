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

{{/* Name of a claim: an existing one, or that which the chart creates. Arguments: (list ROOT NAME VALUES). */}}
{{- define "ranker.claim" -}}
{{ (index . 2).claim | default (printf "%s-%s" (include "ranker.name" (index . 0)) (index . 1)) }}
{{- end }}

{{/* Reference of an image, by digest if there is one. Argument: (list IMAGE CHART). */}}
{{- define "ranker.image" -}}
{{- $image := index . 0 -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default (index . 1).AppVersion }}
{{- end -}}
{{- end }}

{{- define "ranker.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (ternary (include "ranker.name" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{/* Placement of pods, from the values of the serving or of the training pods. */}}
{{- define "ranker.placement" -}}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Pod security settings: a non-root user without service account token. */}}
{{- define "ranker.pod" -}}
serviceAccountName: {{ include "ranker.serviceAccount" . }}
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

{{/* Environment variable with the address of the feature store. */}}
{{- define "ranker.store" -}}
- name: RANKER_STORE
  valueFrom: {secretKeyRef: {name: {{ .Values.store.secret }}, key: address}}
{{- end }}

{{/* Where serving pods send a log, if they do not write it to its volume: a Kafka topic, or object storage. */}}
{{- define "ranker.logTarget" -}}
{{ .kafka | default .remote | default "" | trimSuffix "/" }}
{{- end }}

{{/* Environment variables of the Secret with the credentials for object storage. */}}
{{- define "ranker.credentials" -}}
{{- with .Values.repository.secret }}
envFrom: [{secretRef: {name: {{ . }}}}]
{{- end }}
{{- end }}

{{/* Volume of the repository for pods that only read it: the claim, or one for a copy from object storage. */}}
{{- define "ranker.readRepository" -}}
- name: repository
  {{- if .Values.repository.remote }}
  emptyDir: {sizeLimit: {{ .Values.repository.size }}}
  {{- else }}
  persistentVolumeClaim: {claimName: {{ include "ranker.claim" (list . "repository" .Values.repository) }}, readOnly: true}
  {{- end }}
{{- end }}

{{- define "ranker.readRepositoryMount" -}}
- {name: repository, mountPath: /repository{{ if not .Values.repository.remote }}, readOnly: true{{ end }}}
{{- end }}

{{/* Image, security settings and environment of the containers of training and of the loop. `env` is the last key. */}}
{{- define "ranker.training" -}}
image: {{ include "ranker.image" (list .Values.training.image .Chart) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{ include "ranker.container" . }}
{{- include "ranker.credentials" . }}
env:
  - {name: HOME, value: /tmp}
{{- end }}

{{/* Fails unless pods of the loop can read what the service writes. Arguments: (list ROOT NAME_OF_VALUE). */}}
{{- define "ranker.requireLogs" -}}
{{- $values := (index . 0).Values -}}
{{- if not (and $values.servedLog.enabled $values.feedback.enabled) }}
{{- fail (printf "%s: requires servedLog.enabled and feedback.enabled" (index . 1)) }}
{{- end }}
{{- if $values.feedback.emptyDir }}
{{- fail (printf "%s: only the serving pod can read feedback.emptyDir; use a claim" (index . 1)) }}
{{- end }}
{{- end }}

{{/* Volumes that the service writes. */}}
{{- define "ranker.logVolumes" -}}
- name: served
  persistentVolumeClaim: {claimName: {{ include "ranker.claim" (list . "served-log" .Values.servedLog) }}}
- name: feedback
  persistentVolumeClaim: {claimName: {{ include "ranker.claim" (list . "feedback" .Values.feedback) }}}
{{- end }}

{{/* Arguments that select the model and its keys in the feature store, as a JSON list. */}}
{{- define "ranker.counterArguments" -}}
{{- $arguments := list -}}
{{- with .Values.training.model }}{{ $arguments = concat $arguments (list "--model" .) }}{{ end -}}
{{- with .Values.settings.store_prefix }}{{ $arguments = concat $arguments (list "--prefix" .) }}{{ end -}}
{{- toJson $arguments -}}
{{- end }}

{{- define "ranker.trainingMounts" -}}
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
    persistentVolumeClaim: {claimName: {{ include "ranker.claim" (list . "repository" .Values.repository) }}}
  - {name: tmp, emptyDir: {}}
  - {name: shm, emptyDir: {medium: Memory}}  # Ranks exchange tensors through /dev/shm.
{{- end }}

{{- define "ranker.scaling" -}}
behavior:
  scaleUp:
    stabilizationWindowSeconds: 0
    policies: [{type: Percent, value: 100, periodSeconds: 30}, {type: Pods, value: 2, periodSeconds: 30}]
  scaleDown:
    stabilizationWindowSeconds: 600
    policies: [{type: Percent, value: 10, periodSeconds: 60}]
{{- end }}
