package deploycheck_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/distribution/reference"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// made is what a kustomization makes, by kind: one object of each.
type made map[string]any

// build runs kustomize and decodes everything strictly into the types of Kubernetes and of the Prometheus operator.
func build(t *testing.T, fs filesys.FileSystem, dir string) made {
	t.Helper()
	kinds := made{
		"CronJob": new(batchv1.CronJob), "PersistentVolumeClaim": new(corev1.PersistentVolumeClaim),
		"PodMonitor": new(monitoringv1.PodMonitor), "PrometheusRule": new(monitoringv1.PrometheusRule),
		"Namespace": new(corev1.Namespace), "Service": new(corev1.Service), "StatefulSet": new(appsv1.StatefulSet),
		"Deployment": new(appsv1.Deployment), "NetworkPolicy": new(networkingv1.NetworkPolicy),
		"PodDisruptionBudget": new(policyv1.PodDisruptionBudget),
	}
	out, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(fs, dir)
	require.NoError(t, err)
	all := make(made)
	for _, res := range out.Resources() {
		text, err := res.AsYAML()
		require.NoError(t, err)
		kind := res.GetKind()
		require.Contains(t, kinds, kind, "of a kind that this test knows")
		require.NotContains(t, all, kind, "one object of each kind is what this test looks at")
		require.NoError(t, yaml.UnmarshalStrict(text, kinds[kind]), "%s of %s:\n%s", kind, dir, text)
		all[kind] = kinds[kind]
	}
	return all
}

// get returns the object of type T.
func get[T any](t *testing.T, all made, kind string) *T {
	t.Helper()
	v, ok := all[kind].(*T)
	require.True(t, ok, "a %s is made", kind)
	return v
}

// locked requires that a pod has no rights that it does not need.
func locked(t *testing.T, pod corev1.PodSpec) {
	t.Helper()
	require.True(t, *pod.SecurityContext.RunAsNonRoot)
	require.False(t, *pod.AutomountServiceAccountToken)
	require.Equal(t, corev1.SeccompProfileTypeRuntimeDefault, pod.SecurityContext.SeccompProfile.Type)
	require.NotEmpty(t, pod.Containers)
	for _, c := range pod.Containers {
		require.True(t, *c.SecurityContext.ReadOnlyRootFilesystem, c.Name)
		require.False(t, *c.SecurityContext.AllowPrivilegeEscalation, c.Name)
		require.Equal(t, []corev1.Capability{"ALL"}, c.SecurityContext.Capabilities.Drop, c.Name)
		require.NotEmpty(t, c.Resources.Limits, c.Name)
	}
}

// tree has the files of deploy/kubernetes, which a test may change.
func tree(t *testing.T) filesys.FileSystem {
	t.Helper()
	fs := filesys.MakeFsInMemory()
	require.NoError(t, filepath.WalkDir(in("kubernetes"), func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(in("kubernetes"), path)
		if err != nil {
			return err
		}
		return fs.WriteFile("/"+filepath.ToSlash(name), content)
	}))
	return fs
}

// rewrite replaces text of a file.
func rewrite(t *testing.T, fs filesys.FileSystem, name string, pairs ...string) {
	t.Helper()
	text, err := fs.ReadFile(name)
	require.NoError(t, err)
	for i := 0; i < len(pairs); i += 2 {
		require.Contains(t, string(text), pairs[i], name)
	}
	require.NoError(t, fs.WriteFile(name, []byte(strings.NewReplacer(pairs...).Replace(string(text)))))
}

// With all components, and a name with a hyphen, as docs/deploy.md says: one value changes.
func TestKubernetes_AnotherFleet_HasItsNameEverywhere(t *testing.T) {
	fs := tree(t)
	rewrite(t, fs, "/payments/fleet.yaml", "fleet: payments", "fleet: search-eu")
	rewrite(t, fs, "/payments/kustomization.yaml", "# - ../", "- ../")
	all := build(t, fs, "/payments")
	daemon, job := get[appsv1.Deployment](t, all, "Deployment"), get[batchv1.CronJob](t, all, "CronJob")
	for kind, object := range all {
		text, err := yaml.Marshal(object)
		require.NoError(t, err)
		for _, left := range []string{": FLEET\n", "-FLEET", ": payments"} {
			require.False(t, kind != "PrometheusRule" && strings.Contains(string(text), left), "%s has %q", kind, left)
		}
	}
	require.Equal(t, "waymark-search-eu", daemon.Name)
	require.Equal(t, "search-eu", daemon.Labels["app.kubernetes.io/instance"])
	require.Equal(t, daemon.Spec.Template.Labels, get[monitoringv1.PodMonitor](t, all, "PodMonitor").Spec.Selector.MatchLabels)
	require.Equal(t, daemon.Spec.Template.Labels, daemon.Spec.Template.Spec.TopologySpreadConstraints[0].LabelSelector.MatchLabels)
	require.Equal(t, "waymark-search-eu-backup", job.Name)
	backup := job.Spec.JobTemplate.Spec.Template.Spec
	locked(t, backup)
	require.Equal(t, get[corev1.PersistentVolumeClaim](t, all, "PersistentVolumeClaim").Name, backup.Volumes[2].PersistentVolumeClaim.ClaimName)
	for _, pod := range []corev1.PodSpec{daemon.Spec.Template.Spec, backup} {
		require.Equal(t, "waymark-search-eu-daemon", pod.Volumes[0].Secret.SecretName)
		env := make(map[string]string)
		for _, e := range pod.Containers[0].Env {
			env[e.Name] = e.Value
		}
		require.Equal(t, "search-eu", env["WAYMARK_FLEET"])
		require.Equal(t, "/etc/waymark/fleets/$(WAYMARK_FLEET)-daemon.json", env["NATS_CONTEXT"], "Kubernetes inserts the name")
		limit, err := resource.ParseQuantity(strings.TrimSuffix(env["GOMEMLIMIT"], "B"))
		require.NoError(t, err)
		require.Negative(t, limit.Cmp(pod.Containers[0].Resources.Limits[corev1.ResourceMemory]))
	}
	require.Len(t, get[networkingv1.NetworkPolicy](t, all, "NetworkPolicy").Spec.Egress, 3, "DNS, NATS, the webhook")
	require.Len(t, get[networkingv1.NetworkPolicy](t, build(t, tree(t), "/payments"), "NetworkPolicy").Spec.Egress, 2)
	fs = tree(t)
	require.NoError(t, fs.WriteFile("/own/kustomization.yaml", []byte("resources: [../embedded]\ncomponents: [../webhook]\n")))
	require.Len(t, get[networkingv1.NetworkPolicy](t, build(t, fs, "/own"), "NetworkPolicy").Spec.Egress, 2, "DNS, the model's provider")
	require.NotEmpty(t, get[monitoringv1.PrometheusRule](t, all, "PrometheusRule").Spec.Groups)
}

// The operator's rules are those that promtool reads.
func TestPrometheusRule_Groups_AreTheAlerts(t *testing.T) {
	const header = "# Made from deploy/prometheus/alerts.yaml by: go test -C tools/deploycheck -run PrometheusRule -update\n" +
		"apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata:\n  name: waymark\nspec:\n"
	var want strings.Builder
	want.WriteString(header)
	for line := range strings.Lines(string(read(t, "prometheus", "alerts.yaml"))) {
		if !strings.HasPrefix(line, "#") {
			want.WriteString("  " + line)
		}
	}
	if *update {
		require.NoError(t, os.WriteFile(in("kubernetes", "monitoring", "prometheusrule.yaml"), []byte(want.String()), 0o600))
	}
	require.Equal(t, want.String(), string(read(t, "kubernetes", "monitoring", "prometheusrule.yaml")), "run it with -update")
}

var update = flag.Bool("update", false, "write the files that are made from others")

func TestKubernetes_Kustomizations_Read(t *testing.T) {
	embedded, cluster := build(t, tree(t), "/embedded"), build(t, tree(t), "/payments")

	set := get[appsv1.StatefulSet](t, embedded, "StatefulSet")
	locked(t, set.Spec.Template.Spec)
	require.Equal(t, set.Spec.Template.Labels, set.Spec.Selector.MatchLabels)
	require.EqualValues(t, 1, *set.Spec.Replicas, "a store has one server")
	require.Contains(t, embedded, "Namespace")

	daemon := get[appsv1.Deployment](t, cluster, "Deployment")
	locked(t, daemon.Spec.Template.Spec)
	require.Equal(t, daemon.Spec.Template.Labels, daemon.Spec.Selector.MatchLabels)
	require.GreaterOrEqual(t, *daemon.Spec.Replicas, int32(2), "one goes on while another is replaced")

	for pods, all := range map[*corev1.PodTemplateSpec]made{&set.Spec.Template: embedded, &daemon.Spec.Template: cluster} {
		c := pods.Spec.Containers[0]
		require.Equal(t, "/readyz", c.ReadinessProbe.HTTPGet.Path)
		require.Equal(t, "/healthz", c.LivenessProbe.HTTPGet.Path)
		require.Equal(t, "/healthz", c.StartupProbe.HTTPGet.Path, "a daemon that waits for NATS is not killed")
		policy := get[networkingv1.NetworkPolicy](t, all, "NetworkPolicy")
		require.Equal(t, pods.Labels, policy.Spec.PodSelector.MatchLabels, "it is about this program's pods, all of them and no others")
		require.Len(t, policy.Spec.PolicyTypes, 2)
		// A budget without a selector is about no pod at all.
		budget := get[policyv1.PodDisruptionBudget](t, all, "PodDisruptionBudget")
		require.NotNil(t, budget.Spec.Selector)
		require.Equal(t, pods.Labels, budget.Spec.Selector.MatchLabels)
		require.Equal(t, pods.Labels, get[corev1.Service](t, all, "Service").Spec.Selector)
	}
}

// The chart and the controller are not here to read their files: that they are YAML with something in it is all that is proven.
func TestKubernetes_Files_AreYAML(t *testing.T) {
	for _, name := range []string{"nats-values.yaml", "nack.yaml"} {
		documents := 0
		for document := range strings.SplitSeq(string(read(t, "kubernetes", "cluster", name)), "\n---\n") {
			var v map[string]any
			require.NoError(t, yaml.UnmarshalStrict([]byte(document), &v), name)
			require.NotEmpty(t, v, name)
			documents++
		}
		require.Positive(t, documents, name)
	}
}

// The comment of the file says where monitoring listens and what keeps other pods from it.
func TestNATSValues_Monitoring_IsKeptFromOtherPods(t *testing.T) {
	text := read(t, "kubernetes", "cluster", "nats-values.yaml")
	var values struct {
		Config struct {
			Monitor struct {
				Enabled bool           `json:"enabled"`
				Port    int32          `json:"port"`
				Merge   map[string]any `json:"merge"`
			} `json:"monitor"`
			Merge map[string]any `json:"merge"`
		} `json:"config"`
		ExtraResources []map[string]any `json:"extraResources"`
	}
	require.NoError(t, yaml.Unmarshal(text, &values))
	require.True(t, values.Config.Monitor.Enabled, "the kubelet's probes need it")
	require.EqualValues(t, 8222, values.Config.Monitor.Port)
	require.Contains(t, strings.Join(strings.Fields(string(text)), " "), "port 8222, so that it is not on loopback")
	require.NotContains(t, values.Config.Merge, "http", "it is bound as the chart does it: at the pod's address")
	require.NotContains(t, values.Config.Merge, "monitor_port")

	require.Len(t, values.ExtraResources, 1)
	object, err := yaml.Marshal(values.ExtraResources[0])
	require.NoError(t, err)
	var policy networkingv1.NetworkPolicy
	require.NoError(t, yaml.UnmarshalStrict(object, &policy))
	require.Equal(t, "NetworkPolicy", policy.Kind)
	require.Equal(t, map[string]string{"app.kubernetes.io/name": "nats"}, policy.Spec.PodSelector.MatchLabels)
	require.Equal(t, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}, policy.Spec.PolicyTypes)
	var open []int32
	for _, rule := range policy.Spec.Ingress {
		require.NotEmpty(t, rule.Ports, "a rule without ports is about all of them")
		for _, p := range rule.Ports {
			open = append(open, p.Port.IntVal)
			require.Nil(t, p.EndPort)
			require.Equal(t, p.Port.IntVal != 4222, len(rule.From) > 0, "only clients come from anywhere")
		}
	}
	require.ElementsMatch(t, []int32{4222, 6222}, open)
}

// Each image can be named by its digest, as docs/deploy.md says.
func TestKustomizations_ImageByDigest_IsTheImage(t *testing.T) {
	digest := "sha256:" + strings.Repeat("ab", 32)
	for _, dir := range []string{"embedded", "payments"} {
		over := tree(t)
		require.NoError(t, over.WriteFile("/kustomization.yaml", []byte("resources: ["+dir+"]\nimages:\n  - {name: registry.example.com/waymark, digest: \""+digest+"\"}\n")))
		out, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(over, "/")
		require.NoError(t, err)
		images := 0
		for _, res := range out.Resources() {
			text, err := res.AsYAML()
			require.NoError(t, err)
			for line := range strings.Lines(string(text)) {
				if _, image, ok := strings.Cut(line, "image: "); ok {
					named, err := reference.ParseNormalizedNamed(strings.TrimSpace(image))
					require.NoError(t, err)
					_, pinned := named.(reference.Digested)
					require.True(t, pinned, "%s of %s", image, dir)
					images++
				}
			}
		}
		require.Positive(t, images)
	}
}
