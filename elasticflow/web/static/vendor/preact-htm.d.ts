// What this page uses of htm with Preact.
export function html(strings: TemplateStringsArray, ...values: any[]): any;
export function render(element: any, parent: Element): void;
export function useState<T>(initial: T | (() => T)): [T, (value: T | ((known: T) => T)) => void];
export function useEffect(effect: () => void | (() => void), inputs?: unknown[]): void;
export function useLayoutEffect(effect: () => void | (() => void), inputs?: unknown[]): void;
export function useMemo<T>(make: () => T, inputs: unknown[]): T;
export function useRef<T>(initial: T): { current: T };
