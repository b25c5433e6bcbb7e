package deploycheck_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/distribution/reference"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// made is what a kustomization makes, by kind: one object of each.
type made map[string]any

// build runs kustomize and decodes everything strictly into Kubernetes' own types.
func build(t *testing.T, dir string) made {
	t.Helper()
	kinds := made{
		"Namespace": new(corev1.Namespace), "Service": new(corev1.Service), "StatefulSet": new(appsv1.StatefulSet),
		"Deployment": new(appsv1.Deployment), "NetworkPolicy": new(networkingv1.NetworkPolicy),
		"PodDisruptionBudget": new(policyv1.PodDisruptionBudget),
	}
	out, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), in("kubernetes", dir))
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

// locked requires that a pod has no rights that it does not need, and that it is probed.
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
		require.Equal(t, "/readyz", c.ReadinessProbe.HTTPGet.Path, c.Name)
		require.Equal(t, "/healthz", c.LivenessProbe.HTTPGet.Path, c.Name)
		require.NotEmpty(t, c.Resources.Limits, c.Name)
	}
}

func TestKubernetes_Kustomizations_Read(t *testing.T) {
	embedded, cluster := build(t, "embedded"), build(t, "cluster")

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
	for _, dir := range []string{"embedded", "cluster"} {
		disk := filesys.MakeFsOnDisk()
		over := filesys.MakeFsInMemory()
		require.NoError(t, disk.Walk(in("kubernetes", dir), func(path string, info os.FileInfo, err error) error {
			if err != nil || info.IsDir() {
				return err
			}
			content, err := disk.ReadFile(path)
			if err != nil {
				return err
			}
			return over.WriteFile("/base/"+filepath.Base(path), content)
		}))
		require.NoError(t, over.WriteFile("/kustomization.yaml", []byte("resources: [base]\nimages:\n  - {name: registry.example.com/waymark, digest: \""+digest+"\"}\n")))
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
