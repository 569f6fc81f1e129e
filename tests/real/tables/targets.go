package main

import "strings"

// What is recorded. A new version of Kubernetes is a line in go.mod; a function that it renamed or
// dropped is named by an error, and its entry here follows.

// Group is a set of packages whose tests run together and are recorded into one file.
type Group struct {
	Order    int
	Run      string
	Packages []Package
}

// Package says what of a package is recorded.
type Package struct {
	Path      string
	Functions []Function
	// Extra is Go source added to the package.
	Extra string
	// ConvertsInternal is for packages whose tests use the internal types of the API.
	ConvertsInternal bool
	// Untested packages are recorded while the tests of others run.
	Untested bool
}

// Function names a function, or a method as Type.Name. Before and After are Go expressions by the
// names under which their values are recorded. Without Before, all parameters are; results always
// are, and After adds to them.
type Function struct {
	Name          string
	Before, After values
	// Outermost functions are recorded only where a test calls them itself.
	Outermost bool
}

type values = map[string]string

func functions(names ...string) (list []Function) {
	for _, name := range names {
		list = append(list, Function{Name: name})
	}
	return list
}

func outermost(names ...string) []Function { return onlyOutermost(functions(names...)) }

func onlyOutermost(list []Function) []Function {
	for i := range list {
		list[i].Outermost = true
	}
	return list
}

const gates = `
import keepcloseFeature "k8s.io/apiserver/pkg/util/feature"

func keepcloseGates() string { return keepcloseText(keepcloseFeature.DefaultFeatureGate) }
`

const nodes = `
import (
	keepcloseLabels "k8s.io/apimachinery/pkg/labels"
	keepcloseListers "k8s.io/client-go/listers/core/v1"
)

func keepcloseNodes(lister keepcloseListers.NodeLister) any {
	if lister == nil {
		return nil
	}
	nodes, _ := lister.List(keepcloseLabels.Everything())
	return nodes
}
`

// Writes of Services: the methods that the store lends to REST, recorded. Their requests are copied
// first, since the store works on the object that it is given.
const serviceWrites = `
import (
	keepcloseContext "context"

	keepcloseMeta "k8s.io/apimachinery/pkg/apis/meta/v1"
	keepcloseObjects "k8s.io/apimachinery/pkg/runtime"
	keepcloseRest "k8s.io/apiserver/pkg/registry/rest"
)

func (r *REST) keepcloseState() map[string]any {
	families := []string{string(r.alloc.defaultServiceIPFamily)}
	if len(r.alloc.serviceIPAllocatorsByFamily) > 1 {
		families = append(families, string(r.secondaryIPFamily))
	}
	return map[string]any{"storage": keepclosePointer(r), "families": families}
}

func (r *REST) Create(ctx keepcloseContext.Context, obj keepcloseObjects.Object, validation keepcloseRest.ValidateObjectFunc, options *keepcloseMeta.CreateOptions) (keepcloseObjects.Object, error) {
	values := r.keepcloseState()
	values["object"], values["options"] = obj, options
	call := keepcloseBegin("REST.Create", false, values)
	created, err := r.Store.Create(ctx, obj, validation, options)
	call.end(map[string]any{"object": created, "error": err})
	return created, err
}

func (r *REST) Update(ctx keepcloseContext.Context, name string, info keepcloseRest.UpdatedObjectInfo, create keepcloseRest.ValidateObjectFunc, update keepcloseRest.ValidateObjectUpdateFunc, force bool, options *keepcloseMeta.UpdateOptions) (keepcloseObjects.Object, bool, error) {
	values := r.keepcloseState()
	stored, _ := r.Store.Get(ctx, name, &keepcloseMeta.GetOptions{})
	wanted, err := info.UpdatedObject(ctx, stored)
	values["name"], values["object"], values["stored"], values["options"] = name, wanted, stored, options
	if err != nil {
		values["object"] = nil
	}
	call := keepcloseBegin("REST.Update", false, values)
	updated, created, err := r.Store.Update(ctx, name, info, create, update, force, options)
	call.end(map[string]any{"object": updated, "created": created, "error": err})
	return updated, created, err
}

func (r *REST) Delete(ctx keepcloseContext.Context, name string, validation keepcloseRest.ValidateObjectFunc, options *keepcloseMeta.DeleteOptions) (keepcloseObjects.Object, bool, error) {
	values := r.keepcloseState()
	values["name"], values["options"] = name, options
	call := keepcloseBegin("REST.Delete", false, values)
	deleted, immediately, err := r.Store.Delete(ctx, name, validation, options)
	call.end(map[string]any{"object": deleted, "deleted": immediately, "error": err})
	return deleted, immediately, err
}
`

func proxierEvents(named ...string) (list []Function) {
	for i := 0; i < len(named); i += 2 {
		list = append(list, Function{Name: "Proxier." + named[i], Before: values{
			"proxier": "keepclosePointer(proxier)", "object": named[i+1],
		}})
	}
	return list
}

var groups = map[string]Group{
	"trafficdist": {Order: 1, Packages: []Package{{
		Path:      "k8s.io/endpointslice/trafficdist",
		Functions: functions("ReconcileHints"),
	}}},
	"topologycache": {Order: 2, Packages: []Package{{
		Path: "k8s.io/endpointslice/topologycache",
		Functions: append(functions(
			"RemoveHintsFromSlices", "redistributeHints", "getGivingAndReceivingZones", "getMost",
			"getHintsByZone", "isNodeReady", "numReadyEndpoints",
			"EndpointReady", "FormatWithAddressType", "hasExcludedLabels",
			"SliceInfo.getTotalReadyEndpoints",
		), Function{
			Name: "TopologyCache.AddHints",
			Before: values{
				"si": "si", "ratios": "t.cpuRatiosByZone", "sufficient": "t.sufficientNodeInfo",
				"populated": "t.hintsPopulatedByService", "endpoints": "t.endpointsByService",
			},
			After: values{"endpoints": "t.endpointsByService", "populated": "t.hintsPopulatedByService"},
		}, Function{
			Name:   "TopologyCache.SetNodes",
			Before: values{"nodes": "nodes"},
			After: values{
				"ratios": "t.cpuRatiosByZone", "sufficient": "t.sufficientNodeInfo", "cpu": "t.cpuByZone",
			},
		}, Function{
			Name: "TopologyCache.getAllocations",
			Before: values{
				"numEndpoints": "numEndpoints", "ratios": "t.cpuRatiosByZone", "cpu": "t.cpuByZone",
			},
		}),
	}}},
	"endpointslice": {Order: 3, Packages: []Package{{
		Path:  "k8s.io/endpointslice",
		Extra: nodes,
		Functions: append(outermost(
			"podToEndpoint", "getEndpointPorts", "newEndpointSlice",
			"ownedBy",
			"ServiceControllerKey", "setEndpointSliceLabels", "getAddressTypesForService",
			"hintsEnabled", "FindPort",
		), reconcile, Function{
			Name:   "addTriggerTimeAnnotation",
			Before: values{"slice": "endpointSlice", "trigger": "triggerTime"},
			After:  values{"slice": "endpointSlice"},
		}),
	}, {
		Path: "k8s.io/endpointslice/util",
		Functions: append(outermost(
			"GetPodUpdateProjectionKey", "determineNeededServiceUpdates",
			"ShouldPodBeInEndpoints", "ShouldSetHostname", "podEndpointsChanged",
			"EndpointsEqualBeyondHash", "NewPortMapKey",
		), utilStateful...),
		Extra: services,
	}}},
	"endpointslicecontroller": {Order: 4, Packages: []Package{{
		Path:      "k8s.io/kubernetes/pkg/controller/endpointslice",
		Functions: functions("dropEndpointSlicesPendingDeletion", "isNodeReady"),
	}, {
		Path: "k8s.io/endpointslice", Untested: true, Extra: nodes, Functions: []Function{reconcile},
	}, {
		Path: "k8s.io/endpointslice/util", Untested: true, Extra: services, Functions: utilStateful,
	}}},
	"mirroring": {Order: 5, Packages: []Package{{
		Path: "k8s.io/kubernetes/pkg/controller/endpointslicemirroring",
		Functions: append(outermost(
			"newEndpointSlice", "addressToEndpoint",

			"recycleSlices",
		), Function{
			Name: "reconciler.reconcile",
			Before: values{
				"endpoints": "endpoints", "existing": "existingSlices", "max": "r.maxEndpointsPerSubset",
				"actions": "keepcloseActions(r.client)",
			},
			After: values{"actions": "keepcloseActions(r.client)"},
		}, Function{
			Name: "Controller.shouldMirror",
		}),
	}}},
	"endpoint": {Order: 6, Packages: []Package{{
		Path: "k8s.io/kubernetes/pkg/controller/endpoint",
	}, {
		Path: "k8s.io/kubernetes/pkg/api/v1/endpoints", Functions: functions("RepackSubsets"),
	}, {
		Path: "k8s.io/endpointslice/util", Untested: true, Extra: services,
		Functions: utilStateful,
	}}},
	"proxy": {Order: 7, Packages: []Package{{
		Path:  "k8s.io/kubernetes/pkg/proxy",
		Extra: gates,
		Functions: []Function{{
			Name: "CategorizeEndpoints",
			Before: values{
				"endpoints": "endpoints", "service": "svcInfo", "nodeName": "nodeName",
				"labels": "topologyLabels", "gates": "keepcloseGates()",
			},
		}, {
			Name: "newBaseServiceInfo",
		}, {
			Name: "EndpointsChangeTracker.EndpointSliceUpdate",
			Before: values{
				"tracker": "keepclosePointer(ect)", "slice": "endpointSlice", "remove": "removeSlice",
				"type": "ect.addressType", "node": "ect.endpointSliceCache.nodeName",
			},
		}, {
			Name:   "EndpointsMap.Update",
			Before: values{"tracker": "keepclosePointer(ect)", "map": "em"},
			After:  values{"map": "em"},
		}, {
			Name: "ServiceChangeTracker.Update",
			Before: values{
				"tracker": "keepclosePointer(sct)", "previous": "previous", "current": "current",
				"family": "sct.ipFamily",
			},
		}, {
			Name:   "ServicePortMap.Update",
			Before: values{"tracker": "keepclosePointer(sct)", "map": "sm"},
			After:  values{"map": "sm"},
		}, {
			Name:   "ServicePortMap.HealthCheckNodePorts",
			Before: values{"map": "sm"},
		}, {
			Name:   "EndpointsMap.LocalReadyEndpoints",
			Before: values{"map": "em"},
		}},
	}, {
		Path: "k8s.io/kubernetes/pkg/proxy/util",
		Functions: append(functions(
			"ShouldSkipService", "GetClusterIPByFamily", "MapIPsByIPFamily", "MapCIDRsByIPFamily",
		), Function{
			Name:   "NodePortAddresses.GetNodeIPs",
			Before: values{"cidrs": "npa.cidrStrings", "network": "keepcloseInterfaces(nw)", "all": "npa.matchAll"},
		}),
		Extra: `
func keepcloseInterfaces(network NetworkInterfacer) any {
	addresses, err := network.InterfaceAddrs()
	if err != nil {
		return nil
	}
	texts := []string{}
	for _, address := range addresses {
		texts = append(texts, address.String())
	}
	return texts
}
`,
	}}},
	"nftables": {Order: 8, Packages: []Package{{
		Path: "k8s.io/kubernetes/pkg/proxy/nftables",
		Functions: append(proxierEvents(
			"OnServiceAdd", "service", "OnServiceUpdate", "service", "OnServiceDelete", "service",
			"OnEndpointSliceAdd", "endpointSlice", "OnEndpointSliceUpdate", "endpointSlice",
			"OnEndpointSliceDelete", "endpointSlice",
		), Function{
			Name: "Proxier.syncProxyRules",
			Before: values{
				"proxier": "keepclosePointer(proxier)", "nft": "keepclosePointer(proxier.nftables)",
				"family": "proxier.ipFamily", "masqueradeAll": "proxier.masqueradeAll",
				"local": "proxier.localDetector", "nodeName": "proxier.nodeName", "nodeIP": "proxier.nodeIP",
				"nodePortAddresses": "proxier.nodePortAddresses", "serviceCIDRs": "proxier.serviceCIDRs",
				"topologyLabels": "proxier.topologyLabels",
			},
		}, Function{
			Name: "tracePacket",
			Before: values{
				"nft": "keepclosePointer(nft)", "source": "sourceIP", "protocol": "protocol",
				"destination": "destIP", "port": "destPort", "nodeIPs": "nodeIPs",
			},
		}),
	}}},
	"strings": {Order: 9, Packages: []Package{{
		Path: "k8s.io/apimachinery/pkg/util/validation",
		Functions: functions(
			"IsValidIPForLegacyField", "IsValidIP", "GetWarningsForIP", "IsValidCIDRForLegacyField",
			"IsValidCIDR", "GetWarningsForCIDR", "IsFullyQualifiedName", "IsFullyQualifiedDomainName",
			"IsDNS1123Label", "IsDNS1123Subdomain", "IsDNS1035Label", "IsValidPortNum", "IsValidPortName",
		),
	}}},
	"discoveryvalidation": {Order: 10, Packages: []Package{{
		Path:             "k8s.io/kubernetes/pkg/apis/discovery/validation",
		ConvertsInternal: true, Extra: gates,
		Functions: validations("ValidateEndpointSlice", "endpointSlice oldEndpointSlice", "ValidateEndpointSliceCreate", "endpointSlice", "ValidateEndpointSliceUpdate", "newEndpointSlice oldEndpointSlice"),
	}}},
	"corevalidation": {Order: 11, Run: "Service|Endpoint|LoadBalancer", Packages: []Package{{
		Path:             "k8s.io/kubernetes/pkg/apis/core/validation",
		ConvertsInternal: true, Extra: gates,
		Functions: append(validations(
			"ValidateServiceCreate", "service", "ValidateServiceUpdate", "service oldService",
			"ValidateServiceStatusUpdate", "service oldService", "ValidateEndpointsCreate", "endpoints",
			"ValidateEndpointsUpdate", "newEndpoints oldEndpoints", "ValidateServiceClusterIPsRelatedFields", "service oldService",
			"validateServiceExternalTrafficPolicy", "service",
		), append(functions("ValidateEndpointIP"), Function{
			Name: "ValidateLoadBalancerStatus",
			Before: values{
				"status":  "&core.Service{Status: core.ServiceStatus{LoadBalancer: *status}, Spec: *spec}",
				"old":     "&core.Service{Status: core.ServiceStatus{LoadBalancer: *oldStatus}}",
				"fldPath": "fldPath", "gates": "keepcloseGates()",
			},
		})...),
	}}},
	"defaults": {Order: 12, Run: "Service|Endpoint", Packages: []Package{{
		Path: "k8s.io/kubernetes/pkg/apis/core/v1",
		Functions: []Function{
			{Name: "SetDefaults_Service", Before: values{"object": "obj"}, After: values{"object": "obj"}},
			{Name: "SetDefaults_Endpoints", Before: values{"object": "obj"}, After: values{"object": "obj"}},
		},
	}, {
		Path: "k8s.io/kubernetes/pkg/apis/discovery/v1",
		Functions: []Function{
			{Name: "SetDefaults_EndpointPort", Before: values{"object": "obj"}, After: values{"object": "obj"}},
		},
	}}},
	"warnings": {Order: 13, Packages: []Package{{
		Path:             "k8s.io/kubernetes/pkg/api/service",
		ConvertsInternal: true,
		Functions: functions(
			"GetWarningsForService", "ExternallyAccessible", "RequestsOnlyLocalTraffic", "NeedsHealthCheck",
			"GetLoadBalancerSourceRanges",
		),
	}}},
	"servicestrategy": {Order: 14, Packages: []Package{{
		Path:             "k8s.io/kubernetes/pkg/registry/core/service",
		ConvertsInternal: true, Extra: gates,
		Functions: append(functions("svcStrategy.Validate", "svcStrategy.ValidateUpdate"), mutating(true,
			"svcStrategy.PrepareForCreate", "obj", "svcStrategy.PrepareForUpdate", "obj old",
			"serviceStatusStrategy.PrepareForUpdate", "obj old", "dropTypeDependentFields", "newSvc oldSvc",
		)...),
	}, {
		Path:             "k8s.io/kubernetes/pkg/registry/discovery/endpointslice",
		ConvertsInternal: true, Extra: gates,
		Functions: append([]Function{
			{Name: "endpointSliceStrategy.Validate"}, {Name: "endpointSliceStrategy.ValidateUpdate"},
			{Name: "warnOnDeprecatedAddressType"}, {Name: "warnOnBadIPs"},
		}, mutating(true,
			"endpointSliceStrategy.PrepareForCreate", "obj", "endpointSliceStrategy.PrepareForUpdate", "obj old",
			"dropDisabledFieldsOnCreate", "endpointSlice", "dropDisabledFieldsOnUpdate", "oldEPS newEPS",
			"dropTopologyOnV1", "oldEPS newEPS",
		)...),
	}}},
	"servicestorage": {Order: 15, Packages: []Package{{
		Path:             "k8s.io/kubernetes/pkg/registry/core/service/storage",
		ConvertsInternal: true, Extra: serviceWrites,
		Functions: append(onlyOutermost(mutating(false,
			"normalizeClusterIPs", "after.Service before.Service", "patchAllocatedValues", "after.Service before.Service",
		)), Function{
			Name: "REST.defaultOnReadService",
			Before: values{
				"service": "service", "primary": "r.primaryIPFamily", "secondary": "r.secondaryIPFamily",
			},
			After:     values{"service": "service"},
			Outermost: true,
		}),
	}}},
}

// reconcile is the whole decision about one Service, and what the API is asked for.
var reconcile = Function{
	Name: "Reconciler.Reconcile",
	Before: values{
		"service": "service", "pods": "pods", "existing": "existingSlices", "trigger": "triggerTime",
		"nodes": "keepcloseNodes(r.nodeLister)", "max": "r.maxEndpointsPerSlice",
		"controller": "r.controllerName", "prefersSame": "r.preferSameTrafficDistribution",
		"topology": "r.topologyCache", "actions": "keepcloseActions(r.client)",
	},
	After: values{"actions": "keepcloseActions(r.client)"},
}

const services = `
import (
	keepcloseLabels "k8s.io/apimachinery/pkg/labels"
	keepcloseListers "k8s.io/client-go/listers/core/v1"
)

func keepcloseServices(lister keepcloseListers.ServiceLister) any {
	services, _ := lister.List(keepcloseLabels.Everything())
	return services
}
`

// utilStateful is what decides by what was seen before: trackers, and Services from a lister.
var utilStateful = []Function{
	{Name: "getServicesForPod", Before: values{"services": "keepcloseServices(serviceLister)", "namespace": "namespace", "labels": "podLabels"}},
	{Name: "GetServicesToUpdate", Before: values{"services": "keepcloseServices(serviceLister)", "key": "key"}},
	{Name: "EndpointSliceTracker.Has", Before: values{"tracker": "keepclosePointer(est)", "state": "est.generationsByService", "slice": "endpointSlice"}},
	{Name: "EndpointSliceTracker.ShouldSync", Before: values{"tracker": "keepclosePointer(est)", "state": "est.generationsByService", "slice": "endpointSlice"}},
	{Name: "EndpointSliceTracker.StaleSlices", Before: values{"tracker": "keepclosePointer(est)", "state": "est.generationsByService", "service": "service", "slices": "endpointSlices"}},
	{Name: "EndpointSliceTracker.Update", Before: values{"tracker": "keepclosePointer(est)", "state": "est.generationsByService", "slice": "endpointSlice"}},
	{Name: "EndpointSliceTracker.DeleteService", Before: values{"tracker": "keepclosePointer(est)", "state": "est.generationsByService", "namespace": "namespace", "name": "name"}},
	{Name: "EndpointSliceTracker.ExpectDeletion", Before: values{"tracker": "keepclosePointer(est)", "state": "est.generationsByService", "slice": "endpointSlice"}},
	{Name: "EndpointSliceTracker.HandleDeletion", Before: values{"tracker": "keepclosePointer(est)", "state": "est.generationsByService", "slice": "endpointSlice"}},
	{Name: "TriggerTimeTracker.ComputeEndpointLastChangeTriggerTime", Before: values{"tracker": "keepclosePointer(t)", "namespace": "namespace", "service": "service", "pods": "pods"}},
	{Name: "TriggerTimeTracker.DeleteService", Before: values{"tracker": "keepclosePointer(t)", "namespace": "namespace", "name": "name"}},
}

// validations pairs functions with the objects that they judge, by the gates that are set.
func validations(named ...string) (list []Function) {
	for i := 0; i < len(named); i += 2 {
		inputs := values{"gates": "keepcloseGates()"}
		for position, name := range strings.Fields(named[i+1]) {
			inputs[[]string{"new", "old"}[position]] = name
		}
		list = append(list, Function{Name: named[i], Before: inputs})
	}
	return list
}

// mutating pairs functions with the objects that they change, which are results too, and with the
// gates that are set if these decide.
func mutating(withGates bool, named ...string) (list []Function) {
	for i := 0; i < len(named); i += 2 {
		inputs := values{}
		for _, name := range strings.Fields(named[i+1]) {
			inputs[strings.ToLower(strings.TrimSuffix(name, ".Service"))] = name
		}
		outputs := values{}
		for name, expression := range inputs {
			outputs[name] = expression
		}
		if withGates {
			inputs["gates"] = "keepcloseGates()"
		}
		list = append(list, Function{Name: named[i], Before: inputs, After: outputs})
	}
	return list
}
