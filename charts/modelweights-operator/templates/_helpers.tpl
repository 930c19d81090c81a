{{- define "modelweights.fullname" -}}
{{- .Values.fullnameOverride | default .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- define "modelweights.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "modelweights.fullname" .) -}}
{{- end -}}

{{- define "modelweights.selector" -}}
app.kubernetes.io/name: modelweights-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "modelweights.labels" -}}
{{ include "modelweights.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* What the operator has rights for, each a ClusterRole of its own; words with a comma between. */}}
{{- define "modelweights.features" -}}
{{- $features := list "core" -}}
{{- if .Values.gate.enabled }}{{ $features = append $features "gate" }}{{ end -}}
{{- if .Values.nodeLabels.enabled }}{{ $features = append $features "node-labels" }}{{ end -}}
{{- if .Values.startupTaint.enabled }}{{ $features = append $features "startup-taint" }}{{ end -}}
{{- if .Values.cleanup.enabled }}{{ $features = append $features "cleanup" }}{{ end -}}
{{- if (.Values.access).enabled }}{{ $features = append $features "access" }}{{ end -}}
{{- if .Values.progress.enabled }}{{ $features = append $features "progress" }}{{ end -}}
{{- join "," $features -}}
{{- end -}}

{{/* Folders on the nodes that the loader writes into: roots of hostPath sources and of storage classes, with a : between. */}}
{{- define "modelweights.roots" -}}
{{- $roots := .Values.hostPathRoots -}}
{{- range (.Values.storage).classes }}
{{- if .root }}{{ $roots = append $roots .root }}{{ end }}
{{- if .volumesRoot }}{{ $roots = append $roots .volumesRoot }}{{ end }}
{{- end -}}
{{- $roots | uniq | join ":" -}}
{{- end -}}

{{/* The names of the pull secrets of this namespace, for cleanup Jobs too; with a comma between. */}}
{{- define "modelweights.pullSecrets" -}}
{{- $names := list -}}
{{- range .Values.operator.imagePullSecrets }}{{ $names = append $names .name }}{{ end -}}
{{- $names | join "," -}}
{{- end -}}

{{/* Namespaces that have a folder below a root, with a : between. Takes a list: the root, the root context. */}}
{{- define "modelweights.tenantsBelow" -}}
{{- $root := index . 0 -}}
{{- $context := index . 1 -}}
{{- $found := list -}}
{{- range $context.Values.tenants }}
{{- $class := include "modelweights.storageClass" (list .class $context "tenants") | fromJson -}}
{{- if eq ($class.volumesRoot | default $class.root | default "") $root }}{{ $found = append $found (.reads | default .namespace) }}{{ end -}}
{{- end -}}
{{- $found | uniq | join ":" -}}
{{- end -}}

{{/* A storage class by its name. Takes a list: the name, the root context, who asks. */}}
{{- define "modelweights.storageClass" -}}
{{- $name := index . 0 -}}
{{- $found := dict -}}
{{- range (index . 1).Values.storage.classes }}{{ if eq .name $name }}{{ $found = . }}{{ end }}{{ end -}}
{{- if not $found }}{{ fail (printf "%s names the class %s, which isn't among storage.classes" (index . 2) $name) }}{{ end -}}
{{- $found | toJson -}}
{{- end -}}

{{/* An image by its digest where there is one. Takes a list: the image's values, the root context. */}}
{{- define "modelweights.image" -}}
{{- $image := index . 0 -}}
{{- $root := index . 1 -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default $root.Chart.AppVersion }}
{{- end -}}
{{- end -}}
