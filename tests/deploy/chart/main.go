// Command chart lints or renders a chart by Helm's own packages: chart lint|render DIRECTORY KUBERNETES < VALUES.json
//
// The whole of helm takes twice as long to build.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
)

func main() {
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(verb, directory, kubernetes string) error {
	var values map[string]any
	if err := json.NewDecoder(os.Stdin).Decode(&values); err != nil {
		return err
	}
	version, err := chartutil.ParseKubeVersion(kubernetes)
	if err != nil {
		return err
	}
	if verb == "lint" {
		return check(lint.AllWithKubeVersion(directory, values, "default", version))
	}
	return render(directory, values, version)
}

// check is as strict as helm lint --strict: a warning is a fault.
func check(linted support.Linter) error {
	for _, message := range linted.Messages {
		fmt.Println(message)
	}
	if linted.HighestSeverity >= support.WarningSev {
		return fmt.Errorf("the chart has faults")
	}
	return nil
}

// render writes template -> text as JSON, as an installation named shop has them.
func render(directory string, values map[string]any, version *chartutil.KubeVersion) error {
	chart, err := loader.LoadDir(directory)
	if err != nil {
		return err
	}
	release := chartutil.ReleaseOptions{Name: "shop", Namespace: "default", Revision: 1, IsInstall: true}
	capabilities := chartutil.DefaultCapabilities.Copy()
	capabilities.KubeVersion = *version
	merged, err := chartutil.ToRenderValues(chart, values, release, capabilities)
	if err != nil {
		return err
	}
	texts, err := engine.Render(chart, merged)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(texts)
}
