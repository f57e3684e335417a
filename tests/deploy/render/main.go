// What helm and docker compose make of files, by their own libraries: a program that is built in a fraction of the time.
//
//	render lint CHART [VALUES | NAME=VALUE]...                         messages of `helm lint --strict`; exit code 1 for any above INFO
//	render template CHART RELEASE NAMESPACE [VALUES | NAME=VALUE]...   what `helm template` renders, as a JSON object of documents by file,
//	                                                                   and the values
//	render compose FILE...                                             the project of compose files, as JSON
//
// Every rendered document is decoded as Kubernetes and the Prometheus operator do, and a field that they do not know is an error.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sort"
	"strings"

	"github.com/compose-spec/compose-go/v2/cli"
	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	"helm.sh/helm/v3/pkg/strvals"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	document "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// The oldest version that the chart is for.
const kubernetes = "v1.28.0"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(words []string) error {
	switch {
	case len(words) > 1 && words[0] == "lint":
		return lintChart(words[1], words[2:])
	case len(words) > 3 && words[0] == "template":
		return template(words[1], words[2], words[3], words[4:])
	case len(words) > 1 && words[0] == "compose":
		return compose(words[1:])
	}
	return errors.New("usage: render lint CHART | template CHART RELEASE NAMESPACE | compose FILE")
}

// Values of files and of NAME=VALUE, the later ones first in rank, as helm's -f and --set.
func valuesOf(given []string) (map[string]interface{}, error) {
	all := map[string]interface{}{}
	for _, one := range given {
		if strings.Contains(one, "=") {
			if err := strvals.ParseInto(one, all); err != nil {
				return nil, err
			}
			continue
		}
		read, err := chartutil.ReadValuesFile(one)
		if err != nil {
			return nil, err
		}
		all = chartutil.CoalesceTables(read, all)
	}
	return all, nil
}

func lintChart(path string, given []string) error {
	values, err := valuesOf(given)
	if err != nil {
		return err
	}
	linted := lint.All(path, values, "default", true)
	wrong := 0
	for _, message := range linted.Messages {
		fmt.Println(message)
		if message.Severity > support.InfoSev {
			wrong++
		}
	}
	if wrong > 0 {
		return fmt.Errorf("%d messages of helm lint --strict", wrong)
	}
	return nil
}

func template(path, release, namespace string, given []string) error {
	values, err := valuesOf(given)
	if err != nil {
		return err
	}
	chart, err := loader.Load(path)
	if err != nil {
		return err
	}
	capabilities := chartutil.DefaultCapabilities.Copy()
	version, err := chartutil.ParseKubeVersion(kubernetes)
	if err != nil {
		return err
	}
	capabilities.KubeVersion = *version
	if !chartutil.IsCompatibleRange(chart.Metadata.KubeVersion, kubernetes) {
		return fmt.Errorf("the chart is for Kubernetes %s", chart.Metadata.KubeVersion)
	}
	options := chartutil.ReleaseOptions{Name: release, Namespace: namespace, Revision: 1, IsInstall: true}
	// This checks them against the schema, too.
	all, err := chartutil.ToRenderValues(chart, values, options, capabilities)
	if err != nil {
		return err
	}
	rendered, err := engine.Engine{Strict: true}.Render(chart, all)
	if err != nil {
		return err
	}
	if err := monitoring.AddToScheme(scheme.Scheme); err != nil {
		return err
	}
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	found := map[string][]json.RawMessage{}
	names := make([]string, 0, len(rendered))
	for name := range rendered {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		if strings.HasSuffix(name, "NOTES.txt") {
			text, err := json.Marshal(rendered[name])
			if err != nil {
				return err
			}
			found[name] = []json.RawMessage{text}
			continue
		}
		reader := document.NewYAMLReader(bufio.NewReader(strings.NewReader(rendered[name])))
		for {
			text, err := reader.Read()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			converted, err := yaml.YAMLToJSONStrict(text)
			if err != nil {
				return fmt.Errorf("%s: %w in\n%s", name, err, text)
			}
			if bytes.Equal(converted, []byte("null")) {
				continue
			}
			if _, _, err := decoder.Decode(converted, nil, nil); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			found[name] = append(found[name], converted)
		}
	}
	text, err := json.Marshal(all["Values"])
	if err != nil {
		return err
	}
	found["values"] = []json.RawMessage{text}
	return print(found)
}

func compose(files []string) error {
	// No environment: what is rendered is the same on every machine.
	options, err := cli.NewProjectOptions(files, cli.WithResolvedPaths(false), cli.WithProfiles([]string{"*"}))
	if err != nil {
		return err
	}
	project, err := options.LoadProject(context.Background())
	if err != nil {
		return err
	}
	text, err := project.MarshalJSON()
	if err != nil {
		return err
	}
	fmt.Println(string(text))
	return nil
}

func print(found any) error {
	text, err := json.Marshal(found)
	if err != nil {
		return err
	}
	fmt.Println(string(text))
	return nil
}
